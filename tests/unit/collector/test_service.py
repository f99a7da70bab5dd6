"""The service's order of things, with a broker made of lists: commit, then acknowledge."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Set
from contextlib import closing

import pytest

from collector.device_key import DeviceKey
from collector.errors import StorageFailure
from collector.ingest.admit import Message
from collector.records import Campaign
from collector.store.sqlite import SqliteStore
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
from protocol_spec.topics import from_all_devices
from tests.support.collector_fakes import (
    COLOUR,
    FIRST,
    FUEL,
    HOUR,
    Bench,
    bench,
    counts_of,
    message,
    three_questions,
)


@pytest.fixture
def at_work(
    monkeypatch: pytest.MonkeyPatch, store: SqliteStore, campaign: Campaign, key: DeviceKey
) -> Iterator[Bench]:
    yield bench(monkeypatch, store, key)
    logging.getLogger("allomfree").handlers = []


@pytest.fixture
def topics(campaign: Campaign) -> Topics:
    return Topics(campaign.name)


def reports(campaign: Campaign, devices: range, number: int = 0) -> list[Message]:
    return [message(campaign.manifest, f"d{i}", number=number, body=b"\1") for i in devices]


def forget(campaign: Campaign, device: str, **changed: bytes) -> Message:
    request = Request(digest8(campaign.manifest), RequestKind.FORGET, b"8 bytes.")
    data = changed.get("payload", request.encode())
    return Message(Topics(campaign.name).request(device), data)


def refuse(*_: object) -> None:
    raise StorageFailure("the disk is full")


# --- commit, then acknowledge (I6, I15) ---------------------------------------------------------


def test_a_batch_is_acknowledged_after_its_commit(
    monkeypatch: pytest.MonkeyPatch, store: SqliteStore, campaign: Campaign, key: DeviceKey
) -> None:
    seen: list[tuple[str, int, int]] = []

    def note(moment: str) -> None:
        with closing(SqliteStore(store.path, read_only=True)) as other:
            seen.append((moment, other.received(), len(work.broker.acknowledged)))

    work = bench(monkeypatch, store, key, trace=note)
    work.broker.deliver(*reports(campaign, range(5)))
    work.turns(2)
    assert seen == [
        ("batch in memory", 0, 0),
        ("batch committed", 5, 0),
        ("batch acknowledged", 5, 5),
    ]


def test_bad_messages_are_acknowledged_and_the_next_good_one_is_counted(
    at_work: Bench, campaign: Campaign
) -> None:
    """I15: nothing bad stays at the broker to come again for ever."""
    good = reports(campaign, range(1))[0]
    bad = [Message(None, b""), Message("x", b""), Message(good.topic, b""), forget(campaign, "d9")]
    at_work.broker.deliver(*bad, Message(good.topic, good.payload, retained=True), good)
    at_work.turns(2)
    assert len(at_work.broker.acknowledged) == 6
    assert at_work.store.outcomes() == {
        Outcome.TOPIC_MISMATCH: 2,
        Outcome.MALFORMED: 1,
        Outcome.RETAINED: 1,
        Outcome.ACCEPTED: 1,
    }


def test_a_disk_that_refuses_means_no_acknowledgement_and_no_receipt(
    at_work: Bench, campaign: Campaign
) -> None:
    (pages,) = at_work.store._db.execute("PRAGMA page_count").fetchone()
    at_work.store._db.execute(f"PRAGMA max_page_count = {pages}")
    at_work.broker.deliver(*reports(campaign, range(500)))
    at_work.broker.deliver(*reports(campaign, range(500, 600)))
    at_work.turns(20)
    assert at_work.broker.acknowledged == []
    assert len(at_work.broker.waiting) == 1, "nothing more is read"
    assert not any("/receipt/" in topic for topic in at_work.broker.retained)
    assert "cannot be written" in at_work.service.status.trouble
    assert at_work.service.status.storage_failures >= 19
    at_work.store._db.execute("PRAGMA max_page_count = 1000000")
    at_work.turns(3)
    assert len(at_work.broker.acknowledged) == 600
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 600, 0, 0]}
    assert at_work.service.status.trouble == ""


def test_a_lost_connection_drops_what_was_held_unacknowledged(
    at_work: Bench, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: the broker delivers it again, on the new connection."""
    at_work.turns(1)
    with monkeypatch.context() as full:
        full.setattr(at_work.store, "commit", refuse)
        at_work.broker.deliver(*reports(campaign, range(3)))
        at_work.turns(2)
        link = at_work.service._link
        assert link is not None
        link.lost = "gone"
        at_work.turns(1)
    assert not at_work.service.status.connected
    at_work.turns(5)
    assert at_work.service.status.connected
    assert at_work.broker.acknowledged == []
    at_work.broker.deliver(*reports(campaign, range(3)))
    at_work.turns(2)
    assert len(at_work.broker.acknowledged) == 3
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 3, 0, 0]}


def test_trouble_of_the_upkeep_ends_without_a_report(
    at_work: Bench, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work.turns(2)
    with monkeypatch.context() as full:
        full.setattr(at_work.store, "publish_again", refuse)
        at_work.broker.session_present = False
        at_work.broker.break_now = "gone"
        at_work.turns(6)
        assert at_work.service.status.connected, "a full disk does not keep it from connecting"
        assert at_work.service.status.trouble == "the disk is full"
    at_work.turns(2)
    assert at_work.service.status.trouble == ""


# --- connecting ---------------------------------------------------------------------------------


def test_it_starts_without_a_broker_and_says_so(at_work: Bench, topics: Topics) -> None:
    at_work.broker.there = False
    at_work.turns(4)
    standing = at_work.service.status
    assert (standing.connected, standing.trouble) == (False, "nobody is there")
    at_work.broker.there = True
    at_work.turns(200)
    assert (standing.connected, standing.trouble) == (True, "")
    assert at_work.broker.subscribed == list(from_all_devices())
    assert topics.manifest in at_work.broker.retained


def test_pauses_between_attempts_grow_with_jitter_and_stay_below_a_minute(at_work: Bench) -> None:
    at_work.broker.there = False
    pauses = []
    for _ in range(12):
        now = at_work.time.monotonic()
        at_work.service._disconnected("nobody")
        pauses.append(at_work.service._retry_at - now)
    for attempt, pause in enumerate(pauses):
        longest = min(60.0, 2.0**attempt)
        assert longest / 2 <= pause <= longest


def test_devices_find_the_manifest_and_the_state(
    at_work: Bench, campaign: Campaign, topics: Topics
) -> None:
    at_work.turns(1)
    assert at_work.broker.retained[topics.manifest] == campaign.manifest.to_bytes()
    assert state(at_work, topics) == State(digest8(campaign.manifest), Presence.ONLINE, None)
    at_work.service.shut_down()
    assert state(at_work, topics).presence is Presence.OFFLINE


def state(work: Bench, topics: Topics) -> State:
    decoded = decode_state(work.broker.retained[topics.state])
    assert isinstance(decoded, State)
    return decoded


def test_a_campaign_opened_elsewhere_is_announced(
    monkeypatch: pytest.MonkeyPatch, store: SqliteStore, key: DeviceKey
) -> None:
    work = bench(monkeypatch, store, key)
    work.turns(1)
    assert work.broker.retained == {}
    with closing(SqliteStore(store.path)) as other:
        opened = other.open_campaign(three_questions(), FIRST)
    work.turns(1)
    assert Topics(opened.name).manifest in work.broker.retained


@pytest.mark.parametrize("running", [True, False])
def test_devices_hear_of_a_closing(
    at_work: Bench, campaign: Campaign, topics: Topics, running: bool
) -> None:
    """Also when no service was there while it was closed."""
    if running:
        at_work.turns(1)
    with closing(SqliteStore(at_work.store.path)) as other:
        other.close_campaign(campaign, int(at_work.time.now))
    at_work.turns(1)
    assert at_work.broker.retained[topics.manifest] == b""
    assert state(at_work, topics).presence is Presence.CLOSED
    at_work.broker.deliver(*reports(campaign, range(1)))
    at_work.turns(5)
    assert at_work.store.outcomes() == {Outcome.UNKNOWN_CAMPAIGN: 1}
    assert at_work.store.last_sealed(campaign.id) == 0, "what had begun is sealed"


def test_a_revoked_device_is_refused_from_then_on(at_work: Bench, campaign: Campaign) -> None:
    at_work.turns(1)
    with closing(SqliteStore(at_work.store.path)) as other:
        other.revoke("d0", 0)
    at_work.broker.deliver(*reports(campaign, range(2)))
    at_work.turns(2)
    assert at_work.store.outcomes() == {Outcome.REVOKED: 1, Outcome.ACCEPTED: 1}


# --- sealing ------------------------------------------------------------------------------------


def test_nothing_is_sealed_before_its_deadline(at_work: Bench, campaign: Campaign) -> None:
    at_work.broker.deliver(*reports(campaign, range(3)))
    at_work.turns(2)
    at_work.time.now = campaign.manifest.rounds.deadline(0) - 10.0
    at_work.turns(9)
    assert at_work.store.last_sealed(campaign.id) is None
    at_work.turns(3)
    assert at_work.store.last_sealed(campaign.id) == 0


def test_a_collector_that_was_away_takes_what_was_kept_before_it_seals(
    at_work: Bench, campaign: Campaign
) -> None:
    """The broker hands over its backlog in small parts, all of it after the deadline."""
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    for start in range(0, 100, 10):
        at_work.broker.deliver(*reports(campaign, range(start, start + 10)))
    at_work.turns(30)
    assert at_work.store.last_sealed(campaign.id) == 0
    assert at_work.store.outcomes() == {Outcome.ACCEPTED: 100}
    assert at_work.emitted[0].n == 100


def test_live_reports_of_later_rounds_do_not_put_off_the_sealing(
    at_work: Bench, campaign: Campaign
) -> None:
    at_work.broker.deliver(*reports(campaign, range(3)))
    at_work.turns(1)
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    for device in range(80):
        at_work.broker.deliver(*reports(campaign, range(device, device + 1), number=2))
    at_work.turns(79)
    assert at_work.broker.waiting, "there was never a pause"
    assert at_work.store.last_sealed(campaign.id) == 0


def test_nothing_is_sealed_while_the_broker_is_away(at_work: Bench, campaign: Campaign) -> None:
    at_work.turns(1)
    at_work.broker.there = False
    at_work.broker.break_now = "gone"
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    at_work.turns(20)
    assert at_work.store.last_sealed(campaign.id) is None


def test_nothing_is_sealed_while_a_batch_is_held(
    at_work: Bench, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work.turns(1)
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    at_work.broker.deliver(*reports(campaign, range(3)))
    with monkeypatch.context() as full:
        full.setattr(at_work.store, "commit", refuse)
        at_work.turns(1)
        at_work.turns(20)
        assert at_work.store.last_sealed(campaign.id) is None
    at_work.turns(10)
    assert at_work.emitted[0].n == 3


# --- results ------------------------------------------------------------------------------------


@pytest.fixture
def sealed(at_work: Bench, campaign: Campaign) -> Bench:
    at_work.broker.deliver(*reports(campaign, range(20)))
    at_work.turns(1)
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    at_work.turns(6)
    return at_work


def test_results_are_published_as_they_are_stored(
    sealed: Bench, campaign: Campaign, topics: Topics
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


def test_results_are_published_once(sealed: Bench, topics: Topics) -> None:
    before = len(sealed.broker.published)
    sealed.turns(1)
    assert not any("/result/" in topic for topic, _ in sealed.broker.published[before:])


def test_a_broker_that_forgot_gets_every_result_again(sealed: Bench, topics: Topics) -> None:
    kept = {t: m for t, m in sealed.broker.retained.items() if "/result/" in t}
    sealed.broker.retained.clear()
    sealed.broker.session_present = False
    sealed.broker.break_now = "restarted"
    sealed.turns(10)
    again = {t: m for t, m in sealed.broker.retained.items() if "/result/" in t}
    assert again == kept


# --- receipts -----------------------------------------------------------------------------------


def page_of(work: Bench, campaign: Campaign, device: str) -> ReceiptPage:
    page = receipt_page(campaign.manifest, device)
    data = work.broker.retained[Topics(campaign.name).receipt(0, page)]
    decoded = decode_receipts(data)
    assert isinstance(decoded, ReceiptPage)
    return decoded


def test_every_counted_report_gets_its_receipt(at_work: Bench, campaign: Campaign) -> None:
    at_work.broker.deliver(*reports(campaign, range(40)))
    at_work.broker.deliver(*reports(campaign, range(40)))
    at_work.turns(6)
    pages = {receipt_page(campaign.manifest, f"d{i}") for i in range(40)}
    assert len([t for t in at_work.broker.retained if "/receipt/" in t]) == len(pages)
    for i in range(40):
        tag = receipt_tag(campaign.manifest, 0, f"d{i}")
        assert tag in page_of(at_work, campaign, f"d{i}").tags


def test_a_refused_report_gets_no_receipt(at_work: Bench, campaign: Campaign) -> None:
    at_work.broker.deliver(
        message(campaign.manifest, "d0", body=b"\1"),
        message(campaign.manifest, "d1", body=b"\xff"),
        message(campaign.manifest, "d0", number=0, attribute=COLOUR, body=b"\0\0"),
    )
    at_work.turns(6)
    tags = {t for p in range(16) for t in tags_on(at_work, campaign, p)}
    assert tags == {receipt_tag(campaign.manifest, 0, "d0")}


def tags_on(work: Bench, campaign: Campaign, page: int) -> Set[bytes]:
    data = work.broker.retained.get(Topics(campaign.name).receipt(0, page))
    decoded = None if data is None else decode_receipts(data)
    return decoded.tags if isinstance(decoded, ReceiptPage) else frozenset()


def test_receipts_are_rebuilt_after_a_restart(
    at_work: Bench, campaign: Campaign, key: DeviceKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work.broker.deliver(*reports(campaign, range(3)))
    at_work.turns(1)
    again = bench(monkeypatch, at_work.store, key)
    stops = iter([False] * 8 + [True])
    again.service.run(lambda: next(stops), lambda: again.time.pass_time(1.0))
    for i in range(3):
        tag = receipt_tag(campaign.manifest, 0, f"d{i}")
        assert tag in page_of(again, campaign, f"d{i}").tags


def test_receipts_stand_a_period_beyond_the_deadline_and_are_then_cleared(
    sealed: Bench, campaign: Campaign, topics: Topics
) -> None:
    end = campaign.manifest.rounds.deadline(0) + HOUR
    sealed.time.now = end - 5.0
    sealed.turns(2)
    pages = [t for t in sealed.broker.retained if "/receipt/0/" in t]
    assert pages
    assert all(sealed.broker.retained[t] for t in pages)
    sealed.time.now = float(end)
    sealed.turns(2)
    assert not any(sealed.broker.retained[topics.receipt(0, page)] for page in range(16))
    assert 0 not in sealed.store.clearable_receipts(campaign.id)


# --- forgetting ---------------------------------------------------------------------------------


def test_a_device_is_forgotten_and_told_so(
    at_work: Bench, campaign: Campaign, topics: Topics
) -> None:
    at_work.broker.deliver(*reports(campaign, range(3)))
    at_work.turns(5)
    at_work.broker.deliver(forget(campaign, "d1"))
    at_work.turns(5)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 2, 0, 0]}
    response = decode_response(dict(at_work.broker.published)[topics.response("d1")])
    assert getattr(response, "status", None) is ResponseStatus.DONE
    assert getattr(response, "rounds", None) == 1
    assert getattr(response, "nonce", None) == b"8 bytes."
    assert topics.response("d1") not in at_work.broker.retained
    page = receipt_page(campaign.manifest, "d1")
    assert receipt_tag(campaign.manifest, 0, "d1") not in tags_on(at_work, campaign, page)


def test_a_report_and_its_withdrawal_in_one_batch_leave_nothing(
    at_work: Bench, campaign: Campaign
) -> None:
    at_work.broker.deliver(*reports(campaign, range(2)), forget(campaign, "d1"))
    at_work.turns(2)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 1, 0, 0]}
    assert len(at_work.broker.acknowledged) == 3


@pytest.mark.parametrize(
    "data", [b"", b"\x94", Request(bytes(8), RequestKind(1), bytes(8)).encode()]
)
def test_a_bad_request_changes_nothing_and_is_acknowledged(
    at_work: Bench, campaign: Campaign, topics: Topics, data: bytes
) -> None:
    at_work.broker.deliver(*reports(campaign, range(2)))
    at_work.broker.deliver(forget(campaign, "d1", payload=data))
    at_work.turns(3)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 2, 0, 0]}
    assert len(at_work.broker.acknowledged) == 3
    assert topics.response("d1") not in dict(at_work.broker.published)


def test_a_withdrawal_that_the_disk_refuses_is_not_acknowledged(
    at_work: Bench, campaign: Campaign, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work.broker.deliver(*reports(campaign, range(2)))
    at_work.turns(1)
    with monkeypatch.context() as full:
        full.setattr(at_work.store, "withdraw", refuse)
        at_work.broker.deliver(forget(campaign, "d1"))
        at_work.turns(3)
        assert len(at_work.broker.acknowledged) == 2
    at_work.turns(1)
    assert len(at_work.broker.acknowledged) == 3
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 1, 0, 0]}
    assert topics.response("d1") in dict(at_work.broker.published)


def test_devices_are_forgotten_when_retention_is_over_and_all_is_sealed(
    monkeypatch: pytest.MonkeyPatch, store: SqliteStore, key: DeviceKey
) -> None:
    campaign = store.open_campaign(three_questions(count=2, slug="short"), FIRST)
    work = bench(monkeypatch, store, key)
    work.broker.deliver(*reports(campaign, range(9)))
    work.turns(1)
    work.time.now = float(campaign.manifest.expires + campaign.manifest.retention)
    work.broker.deliver(*reports(campaign, range(5), number=1))
    work.turns(2)
    assert store.participation(campaign.id, FUEL) == ([1], [9]), "round 1 still needs it"
    work.turns(8)
    pooled = store.results(campaign.id, FUEL)[0]
    assert (pooled.n, pooled.devices) == (14, 9)
    assert sum(pooled.raw) == pytest.approx(1.0)
    assert store.participation(campaign.id, FUEL) == ([], [])
