"""The service's order of things, with a broker in memory: commit, then acknowledge."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Set
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

from collector.device_key import DeviceKey
from collector.mqtt import Message, Will
from collector.mqtt.memory import MemoryBroker
from collector.records import Campaign
from collector.service import Service
from collector.store import Store
from collector.store.sqlite import SqliteStore
from collector.timing import Timing
from protocol_spec import (
    Outcome,
    Presence,
    ReceiptPage,
    Request,
    RequestKind,
    ResponseStatus,
    Result,
    State,
    Topics,
    decode_receipts,
    decode_response,
    decode_result,
    decode_state,
    digest8,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.errors import BrokerUnreachable
from tests.support.collector_fakes import (
    COLOUR,
    FIRST,
    FUEL,
    HOUR,
    counts_of,
    message,
    three_questions,
)
from tests.support.collector_service import ManualTime, ServiceInMemory, service_in_memory
from tests.support.stores import ENGINES, Engine, FullDisk, Tap


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return ENGINES[request.param](tmp_path)


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    opened = engine.open()
    yield opened
    opened.close()


@pytest.fixture
def at_work(store: Store, campaign: Campaign, key: DeviceKey) -> Iterator[ServiceInMemory]:
    yield service_in_memory(store, key)
    logging.getLogger("allomfree").handlers = []


@pytest.fixture
def disk(key: DeviceKey) -> FullDisk:
    """A store with an open campaign, whose disk may fill."""
    made = FullDisk()
    made.open_campaign(three_questions(), FIRST)
    return made


@pytest.fixture
def on_disk(disk: FullDisk, key: DeviceKey) -> ServiceInMemory:
    return service_in_memory(disk, key)


@pytest.fixture
def topics(campaign: Campaign) -> Topics:
    return Topics(campaign.name)


def reports(campaign: Campaign, devices: range, number: int = 0) -> list[Message]:
    return [message(campaign.manifest, f"d{i}", number=number, body=b"\1") for i in devices]


def forget(campaign: Campaign, device: str, **changed: bytes) -> Message:
    request = Request(digest8(campaign.manifest), RequestKind.FORGET, b"8 bytes.")
    data = changed.get("payload", request.encode())
    return Message(Topics(campaign.name).request(device), data)


# --- commit, then acknowledge (I6, I15) ---------------------------------------------------------


def test_a_batch_is_acknowledged_after_its_commit(
    store: Store, campaign: Campaign, key: DeviceKey, engine: Engine
) -> None:
    seen: list[tuple[str, int, int]] = []

    def note(moment: str) -> None:
        with closing(engine.open()) as other:
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
    at_work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    """I15: nothing bad stays at the broker to come again for ever."""
    good = reports(campaign, range(1))[0]
    nobody = topics.report("x").replace("/x/", "/NOBODY/")
    at_work.broker.publish(good.topic or "", good.payload, retain=True)
    at_work.turns(1)
    at_work.broker.publish(good.topic or "", b"", retain=True)
    bad = [Message(nobody, b""), Message(good.topic, b""), forget(campaign, "d9")]
    at_work.send([*bad, good])
    at_work.turns(2)
    assert at_work.kept() == 0
    assert at_work.store.outcomes() == {
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
    with closing(SqliteStore(tmp_path / "collector.db", connect=tap)) as store:
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
        assert work.kept() == 0
        assert counts_of(store, campaign, 0) == {FUEL: [0, 600, 0, 0]}
        assert work.service.status.trouble == ""


def test_a_lost_connection_drops_what_was_held_unacknowledged(
    on_disk: ServiceInMemory, disk: FullDisk
) -> None:
    """I7: the broker delivers it again, on the new connection."""
    campaign = disk.campaign(None)
    on_disk.turns(1)
    disk.full = True
    on_disk.send(reports(campaign, range(3)))
    on_disk.turns(2)
    on_disk.broker.cut()
    on_disk.turns(1)
    disk.full = False
    assert not on_disk.service.status.connected
    assert disk.received() == 0
    assert on_disk.kept() == 3
    on_disk.turns(5)
    assert on_disk.service.status.connected
    assert on_disk.kept() == 0
    assert disk.outcomes() == {Outcome.ACCEPTED: 3}
    assert counts_of(disk, campaign, 0) == {FUEL: [0, 3, 0, 0]}


def test_trouble_of_the_upkeep_ends_without_a_report(
    on_disk: ServiceInMemory, disk: FullDisk
) -> None:
    on_disk.turns(2)
    disk.full = True
    on_disk.broker.stop()
    on_disk.broker.start(forget=True)
    on_disk.turns(6)
    assert on_disk.service.status.connected, "a full disk does not keep it from connecting"
    assert on_disk.service.status.trouble == "the disk is full"
    disk.full = False
    on_disk.turns(2)
    assert on_disk.service.status.trouble == ""


# --- connecting ---------------------------------------------------------------------------------


def test_it_starts_without_a_broker_and_says_so(
    at_work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    at_work.broker.stop()
    at_work.turns(4)
    status = at_work.service.status
    assert not status.connected
    assert "it is stopped" in status.trouble
    at_work.broker.start(forget=True)
    at_work.turns(200)
    assert (status.connected, status.trouble) == (True, "")
    assert topics.manifest in at_work.broker.retained
    at_work.send([*reports(campaign, range(2)), forget(campaign, "d0")])
    at_work.turns(1)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 1, 0, 0]}, "it has subscribed"


def test_pauses_between_attempts_grow_with_jitter_and_stay_below_a_minute() -> None:
    drawn = [[Timing().reconnect_pause(failures) for failures in range(12)] for _ in range(20)]
    for pauses in drawn:
        for failures, pause in enumerate(pauses):
            longest = min(60.0, 2.0**failures)
            assert longest / 2 <= pause <= longest
    assert len({pauses[0] for pauses in drawn}) > 1


def test_attempts_to_connect_are_made_after_ever_longer_pauses(
    disk: FullDisk, key: DeviceKey
) -> None:
    time, attempts = ManualTime(), list[float]()

    def nobody(_will: Will | None) -> NoReturn:
        attempts.append(time.now)
        raise BrokerUnreachable("nobody is there")

    service = Service(disk, key, nobody, clock=time.clock())
    while len(attempts) < 10:
        service.turn(0.5)
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    for failures, pause in enumerate(pauses):
        assert min(60.0, 2.0**failures) / 2 <= pause <= min(60.0, 2.0**failures)


def test_devices_find_the_manifest_and_the_state(
    at_work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    at_work.turns(1)
    assert at_work.broker.retained[topics.manifest] == campaign.manifest.to_bytes()
    assert state(at_work, topics) == State(digest8(campaign.manifest), Presence.ONLINE, None)
    at_work.service.shut_down()
    assert state(at_work, topics).presence is Presence.OFFLINE


def state(work: ServiceInMemory, topics: Topics) -> State:
    decoded = decode_state(work.broker.retained[topics.state])
    assert isinstance(decoded, State)
    return decoded


def test_a_campaign_opened_elsewhere_is_announced(
    store: Store, key: DeviceKey, engine: Engine
) -> None:
    work = service_in_memory(store, key)
    work.turns(1)
    assert work.broker.retained == {}
    with closing(engine.open()) as other:
        opened = other.open_campaign(three_questions(), FIRST)
    work.turns(1)
    assert Topics(opened.name).manifest in work.broker.retained


@pytest.mark.parametrize("running", [True, False])
def test_devices_hear_of_a_closing(
    at_work: ServiceInMemory, campaign: Campaign, engine: Engine, topics: Topics, running: bool
) -> None:
    """Also when no service was there while it was closed."""
    if running:
        at_work.turns(1)
    with closing(engine.open()) as other:
        other.close_campaign(campaign, int(at_work.time.now))
    at_work.turns(1)
    assert topics.manifest not in at_work.broker.retained
    assert state(at_work, topics).presence is Presence.CLOSED
    at_work.send(reports(campaign, range(1)))
    at_work.turns(5)
    assert at_work.store.outcomes() == {Outcome.UNKNOWN_CAMPAIGN: 1}
    assert at_work.store.last_sealed(campaign.id) == 0, "what had begun is sealed"


def test_a_revoked_device_is_refused_from_then_on(
    at_work: ServiceInMemory, campaign: Campaign, engine: Engine
) -> None:
    at_work.turns(1)
    with closing(engine.open()) as other:
        other.revoke("d0", 0)
    at_work.send(reports(campaign, range(2)))
    at_work.turns(2)
    assert at_work.store.outcomes() == {Outcome.REVOKED: 1, Outcome.ACCEPTED: 1}


# --- sealing ------------------------------------------------------------------------------------


def test_nothing_is_sealed_before_its_deadline(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.send(reports(campaign, range(3)))
    at_work.turns(2)
    at_work.time.now = campaign.manifest.rounds.deadline(0) - 10.0
    at_work.turns(9)
    assert at_work.store.last_sealed(campaign.id) is None
    at_work.turns(3)
    assert at_work.store.last_sealed(campaign.id) == 0


def test_a_collector_that_was_away_takes_what_was_kept_before_it_seals(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    """The broker hands over its backlog in small parts, all of it after the deadline."""
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    at_work.broker.batch = 10
    at_work.send(reports(campaign, range(100)))
    at_work.turns(30)
    assert at_work.store.last_sealed(campaign.id) == 0
    assert at_work.store.outcomes() == {Outcome.ACCEPTED: 100}
    assert at_work.emitted[0].n == 100


def test_live_reports_of_later_rounds_do_not_put_off_the_sealing(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.send(reports(campaign, range(3)))
    at_work.turns(1)
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    at_work.broker.batch = 1
    at_work.send(reports(campaign, range(80), number=2))
    at_work.turns(79)
    assert at_work.kept() == 1, "there was never a pause"
    assert at_work.store.last_sealed(campaign.id) == 0


def test_nothing_is_sealed_while_the_broker_is_away(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.turns(1)
    at_work.broker.stop()
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    at_work.turns(20)
    assert at_work.store.last_sealed(campaign.id) is None


def test_nothing_is_sealed_while_a_batch_is_held(on_disk: ServiceInMemory, disk: FullDisk) -> None:
    campaign = disk.campaign(None)
    on_disk.turns(1)
    on_disk.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    disk.full = True
    on_disk.send(reports(campaign, range(3)))
    on_disk.turns(21)
    assert disk.last_sealed(campaign.id) is None
    disk.full = False
    on_disk.turns(10)
    assert on_disk.emitted[0].n == 3


@pytest.mark.parametrize(("at_once", "longest"), [(True, 5), (False, 40)])
def test_a_broker_that_delivers_again_later_is_waited_for(
    disk: FullDisk, key: DeviceKey, at_once: bool, longest: int
) -> None:
    """NATS waits half a minute before it delivers an unacknowledged message again."""
    campaign, broker = disk.campaign(None), MemoryBroker(redelivers_at_once=at_once)
    work = service_in_memory(disk, key, broker=broker)
    work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    turns = 0
    while disk.last_sealed(campaign.id) is None:
        work.turns(1)
        turns += 1
    assert longest - 6 < turns <= longest


# --- results ------------------------------------------------------------------------------------


@pytest.fixture
def sealed(at_work: ServiceInMemory, campaign: Campaign) -> ServiceInMemory:
    at_work.send(reports(campaign, range(20)))
    at_work.turns(1)
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    at_work.turns(6)
    return at_work


def test_results_are_published_as_they_are_stored(
    sealed: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    stored = sealed.store.results(campaign.id)
    assert len(stored) == 4  # three attributes, and one of them pooled
    for result in stored:
        assert sealed.broker.retained[topics.result(result.attribute, result.round)] == (
            result.encode()
        )
    assert sealed.store.unpublished() == []
    last = decode_result(sealed.broker.retained[topics.result("fuel")])
    assert isinstance(last, Result)
    assert (last.round, last.n, last.devices) == (None, 20, 20)
    assert state(sealed, topics).last_sealed == 0


def test_results_are_published_once(sealed: ServiceInMemory, topics: Topics) -> None:
    before = len(sealed.published)
    assert any("/result/" in topic for topic, _ in sealed.published)
    sealed.turns(1)
    assert not any("/result/" in topic for topic, _ in sealed.published[before:])


def test_a_broker_that_forgot_gets_every_result_again(
    sealed: ServiceInMemory, topics: Topics
) -> None:
    kept = {t: m for t, m in sealed.broker.retained.items() if "/result/" in t}
    sealed.broker.stop()
    sealed.broker.start(forget=True)
    assert sealed.broker.retained == {}
    sealed.turns(10)
    again = {t: m for t, m in sealed.broker.retained.items() if "/result/" in t}
    assert again == kept


# --- receipts -----------------------------------------------------------------------------------


def page_of(work: ServiceInMemory, campaign: Campaign, device: str) -> ReceiptPage:
    page = receipt_page(campaign.manifest, device)
    data = work.broker.retained[Topics(campaign.name).receipt(0, page)]
    decoded = decode_receipts(data)
    assert isinstance(decoded, ReceiptPage)
    return decoded


def test_every_counted_report_gets_its_receipt(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.send(reports(campaign, range(40)))
    at_work.send(reports(campaign, range(40)))
    at_work.turns(6)
    pages = {receipt_page(campaign.manifest, f"d{i}") for i in range(40)}
    assert len([t for t in at_work.broker.retained if "/receipt/" in t]) == len(pages)
    for i in range(40):
        tag = receipt_tag(campaign.manifest, 0, f"d{i}")
        assert tag in page_of(at_work, campaign, f"d{i}").tags


def test_a_refused_report_gets_no_receipt(at_work: ServiceInMemory, campaign: Campaign) -> None:
    at_work.send(
        [
            message(campaign.manifest, "d0", body=b"\1"),
            message(campaign.manifest, "d1", body=b"\xff"),
            message(campaign.manifest, "d0", number=0, attribute=COLOUR, body=b"\0\0"),
        ]
    )
    at_work.turns(6)
    tags = {t for p in range(16) for t in tags_on(at_work, campaign, p)}
    assert tags == {receipt_tag(campaign.manifest, 0, "d0")}


def tags_on(work: ServiceInMemory, campaign: Campaign, page: int) -> Set[bytes]:
    data = work.broker.retained.get(Topics(campaign.name).receipt(0, page))
    decoded = None if data is None else decode_receipts(data)
    return decoded.tags if isinstance(decoded, ReceiptPage) else frozenset()


def test_receipts_are_rebuilt_after_a_restart(
    at_work: ServiceInMemory, campaign: Campaign, key: DeviceKey
) -> None:
    at_work.send(reports(campaign, range(3)))
    at_work.turns(1)
    again = service_in_memory(at_work.store, key)
    stops = iter([False] * 8 + [True])
    again.service.run(lambda: next(stops), lambda: again.time.pass_time(1.0))
    for i in range(3):
        tag = receipt_tag(campaign.manifest, 0, f"d{i}")
        assert tag in page_of(again, campaign, f"d{i}").tags


def test_receipts_stand_a_period_beyond_the_deadline_and_are_then_cleared(
    sealed: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    end = campaign.manifest.rounds.deadline(0) + HOUR
    sealed.time.now = end - 5.0
    sealed.turns(2)
    assert [t for t in sealed.broker.retained if "/receipt/0/" in t]
    sealed.time.now = float(end)
    sealed.turns(2)
    assert not [t for t in sealed.broker.retained if "/receipt/0/" in t]
    cleared = {topic for topic, payload in sealed.published if not payload}
    assert cleared == {topics.receipt(0, page) for page in range(16)}
    assert 0 not in sealed.store.clearable_receipts(campaign.id)


# --- forgetting ---------------------------------------------------------------------------------


def test_a_device_is_forgotten_and_told_so(
    at_work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    at_work.send(reports(campaign, range(3)))
    at_work.turns(5)
    at_work.send([forget(campaign, "d1")])
    at_work.turns(5)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 2, 0, 0]}
    response = decode_response(dict(at_work.published)[topics.response("d1")])
    assert getattr(response, "status", None) is ResponseStatus.DONE
    assert getattr(response, "rounds", None) == 1
    assert getattr(response, "nonce", None) == b"8 bytes."
    assert topics.response("d1") not in at_work.broker.retained
    page = receipt_page(campaign.manifest, "d1")
    assert receipt_tag(campaign.manifest, 0, "d1") not in tags_on(at_work, campaign, page)


def test_a_report_and_its_withdrawal_in_one_batch_leave_nothing(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.send([*reports(campaign, range(2)), forget(campaign, "d1")])
    at_work.turns(2)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 1, 0, 0]}
    assert at_work.kept() == 0


@pytest.mark.parametrize(
    "data", [b"", b"\x94", Request(bytes(8), RequestKind(1), bytes(8)).encode()]
)
def test_a_bad_request_changes_nothing_and_is_acknowledged(
    at_work: ServiceInMemory, campaign: Campaign, topics: Topics, data: bytes
) -> None:
    at_work.send(reports(campaign, range(2)))
    at_work.turns(1)
    at_work.send([forget(campaign, "d1", payload=data)])
    at_work.turns(2)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 2, 0, 0]}
    assert at_work.kept() == 0
    assert topics.response("d1") not in dict(at_work.published)


def test_a_withdrawal_that_the_disk_refuses_is_not_acknowledged(
    on_disk: ServiceInMemory, disk: FullDisk
) -> None:
    campaign = disk.campaign(None)
    response = Topics(campaign.name).response("d1")
    on_disk.send(reports(campaign, range(2)))
    on_disk.turns(1)
    disk.full = True
    on_disk.send([forget(campaign, "d1")])
    on_disk.turns(3)
    assert on_disk.kept() == 1
    assert response not in dict(on_disk.published)
    disk.full = False
    on_disk.turns(1)
    assert on_disk.kept() == 0
    assert counts_of(disk, campaign, 0) == {FUEL: [0, 1, 0, 0]}
    assert response in dict(on_disk.published)


def test_devices_are_forgotten_when_retention_is_over_and_all_is_sealed(
    store: Store, key: DeviceKey
) -> None:
    campaign = store.open_campaign(three_questions(count=2, slug="short"), FIRST)
    work = service_in_memory(store, key)
    work.send(reports(campaign, range(9)))
    work.turns(1)
    work.time.now = float(campaign.manifest.expires + campaign.manifest.retention)
    work.send(reports(campaign, range(5), number=1))
    work.turns(2)
    assert store.participation(campaign.id, FUEL) == ([1], [9]), "round 1 still needs it"
    work.turns(8)
    pooled = store.results(campaign.id, FUEL)[0]
    assert (pooled.n, pooled.devices) == (14, 9)
    assert sum(pooled.raw) == pytest.approx(1.0)
    assert store.participation(campaign.id, FUEL) == ([], [])
