"""Commit, then acknowledge: what the service does with a batch, with requests, when the disk
refuses, and when there is no broker; what devices hear of campaigns and of the collector."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import DeviceKey
from collector.links import Link, Message, Will
from collector.records import Campaign
from collector.service import Options, Service
from collector.store.sqlite import SqliteStore
from collector.timing import Timing
from protocol_spec import (
    Outcome,
    Presence,
    PublishedThresholds,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    State,
    Topics,
    decode_response,
    decode_thresholds,
    digest8,
    receipt_page,
    receipt_tag,
    thresholds_fault,
)
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.collector import (
    FIRST,
    FUEL,
    ManualTime,
    ServiceInMemory,
    counts_of,
    forget,
    links_to,
    reports,
    service_in_memory,
    state,
    tags_on,
    three_questions,
)
from tests.support.databases import FullDisk, Tap


def counted(work: ServiceInMemory, number: int = 0) -> int:
    """Reports of the first campaign, which all support value 1."""
    found = counts_of(work.store, work.store.campaigns()[0], number)
    return found[FUEL][1] if found else 0


def test_a_batch_is_acknowledged_after_its_commit(
    store: FullDisk, campaign: Campaign, key: DeviceKey
) -> None:
    seen: list[tuple[str, int, int]] = []

    def note(moment: str) -> None:
        with closing(SqliteStore(store.path)) as other:
            seen.append((moment, other.received(), work.kept()))

    work = service_in_memory(store, key, trace=note)
    work.send(reports(campaign, range(5)))
    work.turns(2)
    assert seen == [
        ("batch in memory", 0, 5),
        ("batch committed", 5, 5),
        ("batch acknowledged", 5, 0),
    ]


def test_bad_messages_are_acknowledged_and_the_next_good_one_is_counted(
    work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    """I15: nothing bad stays at the broker to come again for ever."""
    good = reports(campaign, range(1))[0]
    nobody = topics.report("x").replace("/x/", "/NOBODY/")
    work.broker.publish(good.topic or "", good.payload, retain=True)
    work.turns(1)
    work.broker.publish(good.topic or "", b"", retain=True)
    bad = [Message(nobody, b""), Message(good.topic, b""), forget(campaign, "d9")]
    work.send([*bad, good])
    work.turns(2)
    assert work.kept() == 0
    assert work.store.outcomes() == {
        Outcome.TOPIC_MISMATCH: 1,
        Outcome.MALFORMED: 2,
        Outcome.RETAINED: 1,
        Outcome.ACCEPTED: 1,
        Outcome.DUPLICATE: 1,
    }


def test_a_disk_that_refuses_means_no_acknowledgement_and_no_receipt(
    key: DeviceKey, tmp_path: Path
) -> None:
    tap = Tap()
    with closing(SqliteStore(tmp_path / "real.db", connect=tap)) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        work = service_in_memory(store, key, broker=MemoryBroker(batch=500))
        work.turns(1)
        tap.allow_no_growth()
        work.send(reports(campaign, range(600)))
        work.turns(20)
        assert work.kept() == 600
        assert len(work.broker.waiting("collector")) == 100, "nothing more is read"
        assert not any("/receipt/" in topic for topic in work.broker.retained)
        assert "cannot be written" in work.service.status.trouble
        assert work.service.status.storage_failures >= 19
        tap.allow_growth()
        work.turns(3)
        assert (work.kept(), counted(work)) == (0, 600)
        assert work.service.status.trouble == ""


def test_a_lost_connection_drops_what_was_held_unacknowledged(
    work: ServiceInMemory, store: FullDisk, campaign: Campaign
) -> None:
    """I7: the broker delivers it again, on the new connection."""
    work.turns(1)
    store.full = True
    work.send(reports(campaign, range(3)))
    work.turns(2)
    work.broker.cut()
    work.turns(1)
    store.full = False
    assert not work.service.status.connected
    assert (store.received(), work.kept()) == (0, 3)
    work.turns(5)
    assert work.service.status.connected
    assert work.kept() == 0
    assert store.outcomes() == {Outcome.ACCEPTED: 3}


# --- forgetting -----------------------------------------------------------------------------------


def answer_to(work: ServiceInMemory, topic: str) -> Response:
    response = decode_response(dict(work.published)[topic])
    assert isinstance(response, Response)
    return response


def has_receipt(work: ServiceInMemory, campaign: Campaign, device: str) -> bool:
    page = tags_on(work, campaign, receipt_page(campaign.manifest, device))
    return receipt_tag(campaign.manifest, 0, device) in page


def test_a_device_is_forgotten_once_and_answered_each_time(
    work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    """A2, A4: the first request counts; later reports do not."""
    work.send(reports(campaign, range(3)))
    work.turns(5)
    work.send([forget(campaign, "d1")])
    work.turns(5)
    answered = answer_to(work, topics.response("d1"))
    assert (answered.status, answered.rounds) == (ResponseStatus.DONE, 1)
    assert answered.nonce == b"8 bytes."
    assert topics.response("d1") not in work.broker.retained
    assert not has_receipt(work, campaign, "d1")
    pages = dict(work.broker.retained)
    work.send([*reports(campaign, range(1, 2)), forget(campaign, "d1")])
    work.turns(5)
    assert counted(work) == 2
    assert work.store.outcomes() == {Outcome.ACCEPTED: 3, Outcome.FORGOTTEN: 1}
    answered = answer_to(work, topics.response("d1"))
    assert (answered.status, answered.rounds) == (ResponseStatus.DONE, 0)
    assert work.broker.retained == pages


@pytest.mark.parametrize("many", [False, True])
def test_thousands_of_requests_are_one_transaction(
    store: FullDisk, campaign: Campaign, key: DeviceKey, many: bool
) -> None:
    """A2: reports that came behind them are counted in the same turn; each request is counted."""
    writes: list[str] = []
    work = service_in_memory(store, key, trace=writes.append)
    work.send(reports(campaign, range(40)))
    work.turns(5)
    work.send([forget(campaign, f"d{i % 40 if many else 7}") for i in range(2500)])
    work.send(reports(campaign, range(100, 200)))
    before = writes.count("batch committed")
    work.turns(1)
    assert writes.count("batch committed") == before + 1
    assert work.kept() == 0
    forgotten = 40 if many else 1
    assert counted(work) == 140 - forgotten
    assert store.requests() == {"done": forgotten, "repeated": 2500 - forgotten}
    answered = [topic for topic, _ in work.published if topic.endswith("/response")]
    assert len(answered) == len(set(answered)) == forgotten
    work.turns(4)
    assert not has_receipt(work, campaign, "d7")
    assert has_receipt(work, campaign, "d100")


def test_answers_wait_while_the_broker_answers_nothing(
    work: ServiceInMemory, campaign: Campaign
) -> None:
    """A2: no more publishes are unanswered than may be; none of the answers is lost."""
    work.turns(1)
    work.send([forget(campaign, f"d{i}") for i in range(250)])
    sizes = []
    for _ in range(4):
        work.published.clear()
        work.turns(1)
        sizes.append(sum(topic.endswith("/response") for topic, _ in work.published))
    assert max(sizes) <= 100
    assert sum(sizes) == 250


@pytest.mark.parametrize(
    "data", [b"", b"\x94", Request(bytes(8), RequestKind(1), bytes(8)).encode()]
)
def test_a_bad_request_changes_nothing_and_is_acknowledged(
    work: ServiceInMemory, campaign: Campaign, topics: Topics, data: bytes
) -> None:
    work.send(reports(campaign, range(2)))
    work.turns(1)
    work.send([forget(campaign, "d1", payload=data)])
    work.turns(2)
    assert (counted(work), work.kept()) == (2, 0)
    assert topics.response("d1") not in dict(work.published)


def test_a_withdrawal_that_the_disk_refuses_is_not_acknowledged(
    work: ServiceInMemory, store: FullDisk, campaign: Campaign, topics: Topics
) -> None:
    work.send(reports(campaign, range(2)))
    work.turns(1)
    store.full = True
    work.send([forget(campaign, "d1")])
    work.turns(3)
    assert work.kept() == 1
    assert topics.response("d1") not in dict(work.published)
    store.full = False
    work.turns(1)
    assert (counted(work), work.kept()) == (1, 0)
    assert topics.response("d1") in dict(work.published)


def test_devices_are_forgotten_when_retention_is_over_and_all_is_sealed(
    store: FullDisk, key: DeviceKey
) -> None:
    campaign = store.open_campaign(three_questions(count=2, slug="short"), FIRST)
    work = service_in_memory(store, key)
    work.send(reports(campaign, range(9)))
    work.turns(1)
    work.time.now = float(campaign.manifest.rounds.deadline(0))
    work.turns(3)
    work.time.now = float(campaign.manifest.expires + campaign.manifest.retention)
    work.send(reports(campaign, range(5), number=1))
    work.turns(1)
    assert store.participation(campaign.id, FUEL) == ([1], [9]), "round 1 still needs it"
    work.turns(8)
    pooled = store.results(campaign.id, FUEL)[0]
    assert (pooled.n, pooled.devices) == (14, 9)
    assert sum(pooled.raw) == pytest.approx(1.0)
    assert store.participation(campaign.id, FUEL) == ([], [])


# --- connecting -----------------------------------------------------------------------------------


def test_it_starts_without_a_broker_and_reports_that(
    work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    work.broker.stop()
    work.turns(4)
    status = work.service.status
    assert not status.connected
    assert "it is stopped" in status.trouble
    work.broker.start(forget=True)
    work.turns(200)
    assert (status.connected, status.trouble) == (True, "")
    assert topics.manifest in work.broker.retained
    work.send([*reports(campaign, range(2)), forget(campaign, "d0")])
    work.turns(1)
    assert counted(work) == 1, "it has subscribed"


def in_range(pauses: list[float]) -> bool:
    """Doubled after each failure up to a minute, with jitter down to a half."""
    longest = [min(60.0, 2.0**failures) for failures in range(len(pauses))]
    return all(most / 2 <= pause <= most for pause, most in zip(pauses, longest))


def test_a_broker_that_breaks_every_connection_is_asked_less_and_less_often(
    store: FullDisk, key: DeviceKey
) -> None:
    """A5. After a connection that lasted, pauses are short again."""
    time, broker, opened = ManualTime(), MemoryBroker(), list[float]()

    def connect(will: Will | None) -> Link:
        opened.append(time.now)
        return broker.connect("collector", will=will)

    service = Service(store, key, links_to(connect, time.clock()), Options(clock=time.clock()))

    def cut_after(seconds: float) -> float:
        """The pause that follows a connection that lasted that long."""
        before = len(opened)
        time.pass_time(seconds)
        broker.cut()
        ended = time.now
        while len(opened) == before:
            service.turn(0.5)
        return opened[-1] - ended

    service.turn(0.5)
    assert in_range([cut_after(0.1) for _ in range(8)])
    cut_after(Timing().stable_after_seconds)
    assert cut_after(0.1) <= 1.0


# --- what devices hear of campaigns ---------------------------------------------------------------


def test_devices_find_the_manifest_and_the_state(
    work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    work.turns(1)
    assert work.broker.retained[topics.manifest] == campaign.manifest.to_bytes()
    assert state(work, topics) == State(digest8(campaign.manifest), Presence.ONLINE, None)
    thresholds = decode_thresholds(work.broker.retained[topics.thresholds])
    assert isinstance(thresholds, PublishedThresholds)
    assert thresholds_fault(thresholds, campaign.manifest) is None
    work.service.shut_down()
    assert state(work, topics).presence is Presence.OFFLINE


def test_changes_by_other_processes_are_noticed(store: FullDisk, key: DeviceKey) -> None:
    """A campaign that is opened is announced, a device that is revoked refused."""
    work = service_in_memory(store, key)
    work.turns(1)
    assert work.broker.retained == {}
    with closing(SqliteStore(store.path)) as other:
        campaign = other.open_campaign(three_questions(), FIRST)
        work.turns(1)
        assert Topics(campaign.name).manifest in work.broker.retained
        other.revoke("d0", 0)
    work.send(reports(campaign, range(2)))
    work.turns(2)
    assert work.store.outcomes() == {Outcome.REVOKED: 1, Outcome.ACCEPTED: 1}


@pytest.mark.parametrize("running", [True, False])
def test_devices_hear_of_a_closing(
    work: ServiceInMemory, store: FullDisk, campaign: Campaign, topics: Topics, running: bool
) -> None:
    """Also when no service was there while it was closed; what waits for it is counted (F1)."""
    if running:
        work.turns(1)
    work.send(reports(campaign, range(9)))
    with closing(SqliteStore(store.path)) as other:
        other.close_campaign(campaign, int(work.time.now))
    work.turns(1)
    assert {topics.manifest, topics.thresholds}.isdisjoint(work.broker.retained)
    assert state(work, topics).presence is Presence.CLOSED
    work.turns(5)
    assert store.last_sealed(campaign.id) == 0, "what had begun is sealed"
    work.send(reports(campaign, range(1)))
    work.turns(1)
    assert store.outcomes() == {Outcome.ACCEPTED: 9, Outcome.UNKNOWN_CAMPAIGN: 1}
