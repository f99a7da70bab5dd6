"""A worker that is paused past its lease and resumed changes no sealed round and no page (W1, W2,
W5). Every test here fails if what it is about is left out; the controls show that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from collector.store.postgres import PostgresStore
from protocol_spec import Outcome
from tests.support.collector import TIMING, InMemory, Site, Workers, forget, other, reports
from tests.support.databases import snapshot

LONG = int(TIMING.fence_seconds + TIMING.lease_seconds) + 5


class Unfenced(PostgresStore):
    """A store that lets whoever led once go on as if it still did."""

    def check_leading(self) -> None:
        return


def start_two(workers: Workers) -> tuple[InMemory, InMemory]:
    """The one that leads, and the other."""
    for name in "ab":
        workers.start(name)
    workers.turns(3)
    leader = workers.leader()
    return workers.all[leader], workers.all[other(workers, leader)]


def paused(workers: Workers, worker: InMemory, meanwhile: Callable[[], None]) -> Callable[[], None]:
    """For `at`: the worker stands still there while time passes for the others."""

    def pause() -> None:
        worker.paused = True
        meanwhile()
        worker.paused = False

    return pause


def seal_while_another_leads(site: Site, store: type[PostgresStore]) -> Workers:
    """A leader is paused just before it seals; ten reports that were sent in time wait for the
    next leader, who is kept from reading them until the old one is back."""
    workers = site(store=store)
    old, new = start_two(workers)
    workers.send(reports(workers.campaign, range(10)))
    workers.near_deadline()
    workers.pass_deadline()

    def meanwhile() -> None:
        workers.turns(LONG)
        workers.broker.batch = 0
        workers.send(reports(workers.campaign, range(10, 20)))
        assert new.service.status.leads

    def stand_still() -> None:
        workers.broker.batch = 0  # so that the other cannot be drained
        paused(workers, old, meanwhile)()

    old.at["sealing"] = stand_still
    workers.until(lambda: "sealing" not in old.at)
    workers.broker.batch = 4_000
    workers.until(lambda: workers.sealed() == 0)
    return workers


def test_a_leader_that_was_paused_seals_nothing(site: Site) -> None:
    workers = seal_while_another_leads(site, PostgresStore)
    assert workers.counted() == 20
    assert workers.reading.outcomes() == {Outcome.ACCEPTED: 20}


def test_without_the_fence_it_would(site: Site) -> None:
    """The control: reports that were sent in time are shut out."""
    assert seal_while_another_leads(site, Unfenced).counted() < 20


def test_a_worker_that_was_paused_changes_no_sealed_round(site: Site) -> None:
    workers = site()
    leader, worker = start_two(workers)
    workers.near_deadline()
    told: list[dict[str, object]] = []

    def meanwhile() -> None:
        workers.until(lambda: workers.sealed() == 0)
        told.append(snapshot(workers.reading))

    worker.at["batch in memory"] = paused(workers, worker, meanwhile)
    worker.at["batch committed"] = lambda: told.append(snapshot(workers.reading))
    workers.send(reports(workers.campaign, range(20)))
    workers.pass_deadline()
    worker.service.turn(0.0)
    assert len(told) == 1, "it has committed nothing"
    assert snapshot(workers.reading) == told[0]
    number = worker.service.status.worker
    workers.turns(3)
    assert worker.service.status.worker > number, "it takes part again, as another"
    assert workers.counted() == 10
    assert workers.reading.outcomes() == {Outcome.ACCEPTED: 10, Outcome.LATE: 10}
    assert leader.service.status.leads


def stale_page(workers: Workers) -> bool:
    """A leader is paused with a page in hand; meanwhile another leads, and the devices on that page
    ask to be forgotten. Whether one of them is on the page in the end."""
    old, new = start_two(workers)
    workers.near_deadline()
    workers.pass_deadline()
    devices = iter(range(1, 100))
    sent: list[int] = []

    def meanwhile() -> None:
        workers.turns(LONG)
        assert new.service.status.leads
        for device in sent:
            workers.send([forget(workers.campaign, f"d{device}")] * 2)
        workers.until(lambda: workers.counted(1) == 0 and not workers.tags(1))

    old.at["sealed"] = paused(workers, old, meanwhile)
    while "sealed" in old.at:
        sent.append(next(devices))  # so that the page has changed, whenever it is
        workers.send(reports(workers.campaign, range(sent[-1], sent[-1] + 1), number=1))
        new.service.turn(0.0)
        old.service.turn(0.0)
        workers.time.pass_time(0.5)
    workers.turns(3)
    return bool(workers.tags(1))


@pytest.mark.parametrize("one_publisher", [True, False])
def test_a_leader_that_was_paused_publishes_no_stale_page(
    site: Site, *, one_publisher: bool
) -> None:
    """Also where the broker would let it: its lease is over by a clock that no pause can stop."""
    workers = site()
    workers.one_publisher = one_publisher
    assert not stale_page(workers)


@pytest.mark.parametrize("one_publisher", [True, False])
def test_the_broker_ends_the_old_leaders_connection(site: Site, *, one_publisher: bool) -> None:
    """Also where its clock stood still: unless it has a name of its own there, the control."""
    workers = site()
    workers.one_publisher = one_publisher
    usual = workers.time.clock()
    stopped = replace(usual, steady=lambda: 0.0)
    workers.start("a", clock=stopped)
    workers.turns(3)
    assert workers.all["a"].service.status.leads
    workers.all["a"].paused = True
    workers.start("b")
    workers.turns(LONG)
    assert workers.all["b"].service.status.leads
    before = dict(workers.broker.retained)
    workers.broker.retained.clear()
    (link,) = workers.all["a"].publishers
    link.publish("allomfree/stale", b"stale")
    assert ("allomfree/stale" in workers.broker.retained) is not one_publisher
    assert before
