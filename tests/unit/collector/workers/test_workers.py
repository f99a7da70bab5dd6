"""Several workers count as one would: once, with receipts, and rounds that end for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.commands.reading import status_text
from collector.links import BATCH
from collector.results.facts import overview, role_of, status_facts
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
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.topics import marker
from tests.support.collector import (
    FIRST,
    HOUR,
    TIMING,
    Site,
    Workers,
    forget,
    message,
    other,
    reports,
)


@pytest.fixture
def workers(site: Site) -> Workers:
    """Two, of which one leads."""
    made = site()
    for name in "ab":
        made.start(name)
    made.turns(3)
    return made


def test_workers_share_the_reports(workers: Workers) -> None:
    workers.send(reports(workers.campaign, range(40)))
    workers.turns(6)
    assert workers.counted() == 40
    assert [w.received for w in workers.reading.workers()] == [20, 20]
    assert workers.reading.outcomes() == {Outcome.ACCEPTED: 40}
    for name in ("worker-a", "worker-b"):
        assert {m.topic for m in workers.broker.kept(name)} <= {marker()}, "all acknowledged"


def test_the_leader_publishes_receipts_of_all(workers: Workers) -> None:
    workers.send(reports(workers.campaign, range(40)))
    workers.turns(10)
    assert len(workers.tags()) == 40


def test_only_one_leads(workers: Workers) -> None:
    assert [w.leads for w in workers.reading.workers()].count(True) == 1
    state = decode_state(workers.broker.retained[Topics(workers.campaign.name).state])
    assert isinstance(state, State)
    assert state.presence is Presence.ONLINE


def test_a_report_that_comes_twice_counts_once_wherever_it_comes(workers: Workers) -> None:
    for _ in range(3):
        workers.send(reports(workers.campaign, range(11)))
        workers.turns(3)
    assert workers.counted() == 11
    assert workers.reading.outcomes() == {Outcome.ACCEPTED: 11, Outcome.DUPLICATE: 22}


def test_a_receipt_comes_back_for_a_device_that_asks_again(workers: Workers) -> None:
    """Its page was lost at the broker, perhaps: the leader hears of the repeated report."""
    workers.send(reports(workers.campaign, range(1)))
    workers.turns(5)
    workers.broker.cut()
    workers.broker.retained.clear()
    workers.send(reports(workers.campaign, range(1)))
    workers.until(lambda: len(workers.tags()) == 1)


def test_an_attribute_is_for_life_at_every_worker(workers: Workers) -> None:
    for attribute in (0, 2):
        body = b"\1" if attribute == 0 else b"\0\1"
        for _ in range(2):
            workers.send([message(workers.campaign.manifest, attribute=attribute, body=body)])
            workers.turns(2)
    assert workers.reading.outcomes()[Outcome.ACCEPTED] == 1
    assert workers.reading.tallies(workers.campaign.id, 0)[0].n == 1


def test_a_round_is_sealed_with_the_reports_of_all(workers: Workers) -> None:
    workers.send(reports(workers.campaign, range(40)))
    workers.near_deadline()
    workers.pass_deadline()
    workers.until(lambda: workers.sealed() == 0)
    assert [result.n for _, result in workers.emitted if result.n == 40]
    assert {name for name, _ in workers.emitted} == {workers.leader()}, "and sealed once"


def test_what_waits_for_a_slow_worker_is_counted_first(workers: Workers) -> None:
    """W6: no round ends while a live worker may hold reports that were sent in time."""
    workers.near_deadline()
    slow = other(workers, workers.leader())
    workers.broker.batch = 1
    workers.send(reports(workers.campaign, range(60)))
    workers.pass_deadline()
    while workers.sealed() is None:
        workers.turns()
    assert workers.counted() == 60
    assert workers.all[slow].service.status.late == 0


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
    first = workers.leader()
    workers.all.pop(first).service.shut_down()
    workers.turns(int(TIMING.lease_seconds / 4) + 2)
    assert workers.leader() != first
    assert [w.name for w in workers.reading.workers()] == [workers.leader()]
    state = decode_state(workers.broker.retained[Topics(workers.campaign.name).state])
    assert isinstance(state, State)
    assert state.presence is Presence.ONLINE, "somebody still collects"


def test_who_stops_leaves_nothing_at_the_broker(workers: Workers) -> None:
    """What the broker had dealt to it is counted, and nothing more is dealt to it."""
    workers.send(reports(workers.campaign, range(10)))
    workers.all.pop("b").service.shut_down()
    workers.send(reports(workers.campaign, range(10, 20)))
    workers.turns(3)
    assert workers.counted() == 20


def test_the_last_one_says_that_nobody_collects(workers: Workers) -> None:
    follower = other(workers, workers.leader())
    for name in (follower, workers.leader()):
        workers.all.pop(name).service.shut_down()
    state = decode_state(workers.broker.retained[Topics(workers.campaign.name).state])
    assert isinstance(state, State)
    assert state.presence is Presence.OFFLINE
    workers.send(reports(workers.campaign, range(5)))
    workers.start("a")
    workers.start("b")
    workers.turns(5)
    assert workers.counted() == 5, "the last one's session kept them"


def test_clocks_of_workers_do_not_matter(site: Site) -> None:
    """W3: minutes apart, and one an hour behind; the database's time decides."""
    workers = site()
    for name, ahead in (("a", 600.0), ("b", -HOUR), ("c", 0.0)):
        workers.start(name, ahead=ahead)
    workers.turns(3)
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


def test_an_answer_outlives_the_worker_that_heard_the_question(workers: Workers) -> None:
    workers.send(reports(workers.campaign, range(2)))
    workers.turns(3)
    workers.send([forget(workers.campaign, "d0"), forget(workers.campaign, "d1")])
    follower = other(workers, workers.leader())
    workers.all[follower].service.turn(0.0)
    workers.all[follower].paused = True
    workers.turns(4)
    assert len([topic for topic, _ in workers.published if "/down/" in topic]) == 2


def test_a_revoked_device_is_refused_by_all(workers: Workers) -> None:
    workers.reading.revoke("d1", FIRST)
    workers.turns(2)
    for _ in range(2):
        workers.send(reports(workers.campaign, range(1, 2)))
        workers.turns(2)
    assert workers.reading.outcomes() == {Outcome.REVOKED: 2}


def test_a_campaign_that_is_closed_is_sealed_and_withdrawn(workers: Workers) -> None:
    workers.send(reports(workers.campaign, range(4)))
    workers.turns(2)
    workers.reading.close_campaign(workers.campaign, int(workers.time.now))
    workers.until(lambda: workers.sealed() == 0)
    assert workers.counted() == 4
    assert Topics(workers.campaign.name).manifest not in workers.broker.retained


def test_a_broker_without_shared_subscriptions_is_named(site: Site) -> None:
    workers = site(broker=MemoryBroker(sharing="it speaks MQTT 3.1.1 only"))
    worker = workers.start("a")
    workers.turns(2)
    trouble = worker.service.status.trouble
    assert "no shared subscriptions (it speaks MQTT 3.1.1 only)" in trouble
    assert "--stream" in trouble
    assert not worker.service.status.connected


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
    assert 'allomfree_workers{role="leads"} 1.0' in text
    assert 'allomfree_workers{role="counts"} 0.0' in text
    assert 'allomfree_workers{role="fenced"} 1.0' in text
    (line,) = [line for line in told(workers, tmp_path) if "worker 1 " in line]
    assert line.startswith("  worker 1 on a leads: seen ")


def told(workers: Workers, directory: Path) -> list[str]:
    return status_text(status_facts(workers.reading, directory, workers.time.now)).splitlines()


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
