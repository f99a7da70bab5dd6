"""Several workers count as one would; one paused past its lease changes nothing (W1, W2, W5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collector.commands.reading import status_text
from collector.links import BATCH
from collector.results.facts import overview, role_of, status_facts
from collector.store.postgres import PostgresStore
from collector.web.metrics import exposition, registry
from protocol_spec import (
    Outcome,
    Presence,
    Response,
    State,
    Topics,
    decode_response,
    decode_state,
)
from protocol_spec.topics import marker
from tests.support.collector import (
    HOUR,
    TIMING,
    InMemory,
    Site,
    Workers,
    forget,
    other,
    reports,
)
from tests.support.databases import snapshot


@pytest.fixture
def workers(site: Site) -> Workers:
    """Two, of which one leads."""
    made = site()
    for name in "ab":
        made.start(name)
    made.turns(3)
    return made


def presence(workers: Workers) -> Presence:
    found = decode_state(workers.broker.retained[Topics(workers.campaign.name).state])
    assert isinstance(found, State)
    return found.presence


def test_workers_share_the_reports_and_one_leads(workers: Workers) -> None:
    assert [w.leads for w in workers.reading.workers()].count(True) == 1
    assert presence(workers) is Presence.ONLINE
    workers.send(reports(workers.campaign, range(40)))
    workers.turns(10)
    assert workers.counted() == 40
    assert [w.received for w in workers.reading.workers()] == [20, 20]
    for name in ("worker-a", "worker-b"):
        assert {m.topic for m in workers.broker.kept(name)} <= {marker()}, "all acknowledged"
    assert len(workers.tags()) == 40, "the leader publishes receipts of all"
    workers.send(reports(workers.campaign, range(11)))
    workers.turns(3)
    assert workers.reading.outcomes() == {Outcome.ACCEPTED: 40, Outcome.DUPLICATE: 11}


def test_a_round_is_sealed_with_the_reports_of_all(workers: Workers) -> None:
    """W6: no round ends while a live worker may hold reports that were sent in time."""
    workers.near_deadline()
    slow = other(workers, workers.leader())
    workers.broker.batch = 1
    workers.send(reports(workers.campaign, range(60)))
    workers.pass_deadline()
    workers.until(lambda: workers.sealed() == 0)
    assert workers.counted() == 60
    assert workers.all[slow].service.status.late == 0
    assert [result.n for _, result in workers.emitted if result.n == 60]
    assert {name for name, _ in workers.emitted} == {workers.leader()}, "and sealed once"


def test_a_silent_worker_is_fenced_and_not_waited_for(workers: Workers) -> None:
    workers.near_deadline()
    silent = other(workers, workers.leader())
    workers.all[silent].paused = True
    workers.send(reports(workers.campaign, range(40)))
    workers.pass_deadline()
    workers.turns(5)
    assert workers.sealed() is None, "it may come back soon"
    workers.turns(int(TIMING.fence_seconds))
    assert workers.sealed() == 0
    assert workers.counted() == 20, "the other half waits for the silent one"


def test_a_worker_that_cannot_be_drained_delays_a_round_only_so_long(workers: Workers) -> None:
    """A3: the manifest bounds the wait."""
    workers.near_deadline()
    stuck = workers.all[other(workers, workers.leader())]
    stuck.link().end("its line was cut")
    workers.broker.refuse = lambda topic: "no" if topic.endswith("/report") else None
    workers.pass_deadline()
    drain = workers.campaign.manifest.rounds.drain
    workers.turns(drain - 10)
    assert workers.sealed() is None
    waiting = workers.all[workers.leader()].service.status.waiting
    assert "worker" in waiting[workers.campaign.name]["why"]
    workers.turns(60)
    assert workers.sealed() == 0


def test_another_leads_when_the_leader_is_gone(workers: Workers) -> None:
    workers.send(reports(workers.campaign, range(8)))
    workers.turns(5)
    gone = workers.leader()
    workers.all.pop(gone)
    workers.broker.retained.clear()
    workers.turns(int(2 * TIMING.lease_seconds))
    assert workers.leader() != gone
    assert len(workers.tags()) == 8, "it has built the pages anew"
    workers.near_deadline()
    workers.pass_deadline()
    workers.until(lambda: workers.sealed() == 0)


def test_a_leader_that_stops_in_good_order_is_followed_at_once(workers: Workers) -> None:
    """What the broker had assigned to it is counted, and nothing more is assigned to it."""
    first = workers.leader()
    workers.send(reports(workers.campaign, range(10)))
    workers.all.pop(first).service.shut_down()
    workers.send(reports(workers.campaign, range(10, 20)))
    workers.turns(int(TIMING.lease_seconds / 4) + 2)
    assert workers.leader() != first
    assert [w.name for w in workers.reading.workers()] == [workers.leader()]
    assert presence(workers) is Presence.ONLINE, "somebody still collects"
    assert workers.counted() == 20


def test_the_last_one_publishes_that_nobody_collects(workers: Workers) -> None:
    follower = other(workers, workers.leader())
    for name in (follower, workers.leader()):
        workers.all.pop(name).service.shut_down()
    assert presence(workers) is Presence.OFFLINE
    workers.send(reports(workers.campaign, range(5)))
    workers.start("a")
    workers.start("b")
    workers.turns(5)
    assert workers.counted() == 5, "the last one's session kept them"


def test_clocks_of_workers_do_not_matter(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """W3: minutes apart, and one an hour behind; the database's time decides. Each that is wrong
    is mentioned, whether its worker leads or not, once in the log."""
    workers = site()
    for name, ahead in (("a", 120.0), ("b", -HOUR), ("c", 0.0)):
        workers.start(name, ahead=ahead)
    workers.turns(3)
    hints = [workers.all[name].service.status.clock for name in "abc"]
    assert [text.partition("clock is ")[2][:14] for text in hints] == [
        "120 s ahead of", "3600 s behind ", ""
    ]  # fmt: skip
    assert caplog.text.count("the database's") == 2
    workers.time.set(workers.campaign.manifest.rounds.deadline(0) - 120.0)
    workers.send(reports(workers.campaign, range(9)))
    workers.turns(60)
    assert workers.sealed() is None
    assert workers.counted() == 9
    workers.until(lambda: workers.sealed() == 0)
    assert workers.reading.outcomes() == {Outcome.ACCEPTED: 9}


def test_forgotten_at_one_worker_and_answered_by_the_leader(workers: Workers) -> None:
    workers.send(reports(workers.campaign, range(6)))
    workers.turns(6)
    assert len(workers.tags()) == 6
    for device in ("d0", "d1", "d2"):
        workers.send([forget(workers.campaign, device)])
    workers.turns(8)
    assert workers.counted() == 3
    assert len(workers.tags()) == 3, "their receipts are gone"
    answers = [decode_response(data) for topic, data in workers.published if "/down/" in topic]
    assert [a.rounds for a in answers if isinstance(a, Response)] == [1, 1, 1]
    assert workers.reading.queued_answers(10) == []


def test_workers_are_shown_in_status_and_metrics(workers: Workers, tmp_path: Path) -> None:
    workers.send(reports(workers.campaign, range(8)))
    workers.near_deadline()
    workers.all[other(workers, workers.leader())].paused = True
    workers.turns(int(TIMING.fence_seconds) + 3)
    shown = overview(workers.reading, tmp_path, workers.time.now)["workers"]
    assert [role_of(worker) for worker in shown] == ["leads", "fenced"]
    assert [worker["received"] for worker in shown] == [4, 4]
    assert shown[0]["silent"] <= 2 < TIMING.fence_seconds < shown[1]["silent"]
    assert shown[0]["drained"] is not None
    assert shown[0]["drained"] < 5
    text = exposition(registry(tmp_path, lambda _: workers.reading)).decode()
    for role, count in (("leads", 1), ("counts", 0), ("fenced", 1)):
        assert f'allomfree_workers{{role="{role}"}} {count}.0' in text
    status = status_text(status_facts(workers.reading, tmp_path, workers.time.now))
    (line,) = [line for line in status.splitlines() if "worker 1 " in line]
    assert line.startswith("  worker 1 on a leads: seen ")


# --- reading while the database commits ----------------------------------------------------------
def test_a_worker_reads_while_its_batch_is_committed(site: Site) -> None:
    workers = site()
    worker = workers.start("a")
    workers.turns(3)
    workers.send(reports(workers.campaign, range(7)))
    worker.store.meanwhile()
    assert worker.link().step(0.0) == [], "it has them"
    workers.turns()
    assert workers.counted() == 7
    assert {m.topic for m in workers.broker.kept("worker-a")} <= {marker()}, "all acknowledged"


def test_what_was_read_ahead_is_delivered_again_after_a_lost_connection(site: Site) -> None:
    """I7: it can only be acknowledged where it was delivered."""
    workers = site()
    worker = workers.start("a")
    workers.turns(3)
    later = reports(workers.campaign, range(10, 15))
    worker.at["batch in memory"] = lambda: workers.send(later)
    workers.send(reports(workers.campaign, range(10)))
    workers.turns()
    assert workers.counted() == 10
    workers.broker.cut()
    workers.until(lambda: workers.counted() == 15)
    workers.turns(5)
    assert workers.reading.outcomes() == {Outcome.ACCEPTED: 15}


def test_no_more_than_two_batches_are_in_memory(site: Site) -> None:
    """I13: when the database is slow, the broker waits."""
    workers = site()
    worker = workers.start("a")
    workers.turns(3)
    workers.send(reports(workers.campaign, range(3 * BATCH)))
    for _ in range(5):
        worker.store.meanwhile()
    assert len(worker.link().step(0.0)) == BATCH


# --- paused past the lease; the controls show that each test fails without what it is about -------
LONG = int(TIMING.fence_seconds + TIMING.lease_seconds) + 5


class Unfenced(PostgresStore):
    """A store that lets whoever led once go on as if it still did."""

    def _check_leading(self) -> None:
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


@pytest.mark.parametrize("store", [PostgresStore, Unfenced], ids=["fenced", "control"])
def test_a_leader_that_was_paused_seals_nothing(site: Site, store: type[PostgresStore]) -> None:
    """Without the fence, reports that were sent in time are shut out."""
    workers = seal_while_another_leads(site, store)
    if store is Unfenced:
        assert workers.counted() < 20
    else:
        assert workers.counted() == 20
        assert workers.reading.outcomes() == {Outcome.ACCEPTED: 20}


def test_a_worker_that_was_paused_changes_no_sealed_round(site: Site) -> None:
    workers = site()
    leader, worker = start_two(workers)
    workers.near_deadline()
    snapshots: list[dict[str, object]] = []

    def meanwhile() -> None:
        workers.until(lambda: workers.sealed() == 0)
        snapshots.append(snapshot(workers.reading))

    worker.at["batch in memory"] = paused(workers, worker, meanwhile)
    worker.at["batch committed"] = lambda: snapshots.append(snapshot(workers.reading))
    workers.send(reports(workers.campaign, range(20)))
    workers.pass_deadline()
    worker.service.turn(0.0)
    assert len(snapshots) == 1, "it has committed nothing"
    assert snapshot(workers.reading) == snapshots[0]
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
    stopped = replace(usual, boottime=lambda: 0.0)
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
