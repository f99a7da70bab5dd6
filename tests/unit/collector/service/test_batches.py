"""Commit, then acknowledge: what the service does with a batch, and when the disk refuses."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import DeviceKey
from collector.links import Message
from collector.records import Campaign
from collector.store import Store
from collector.store.sqlite import SqliteStore
from protocol_spec import (
    Outcome,
    Request,
    RequestKind,
    ResponseStatus,
    Topics,
    decode_response,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.collector import (
    FIRST,
    FUEL,
    ServiceInMemory,
    counts_of,
    forget,
    reports,
    service_in_memory,
    tags_on,
    three_questions,
)
from tests.support.databases import Engine, FullDisk, Tap


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


@pytest.mark.parametrize("many", [False, True])
def test_thousands_of_requests_are_one_transaction(
    store: Store, campaign: Campaign, key: DeviceKey, topics: Topics, many: bool
) -> None:
    """A2: reports that came behind them are counted in the same turn; each request is counted."""
    writes: list[int] = []
    work = service_in_memory(
        store, key, trace=lambda moment: writes.append(1) if moment == "batch committed" else None
    )
    work.send(reports(campaign, range(40)))
    work.turns(5)
    work.send([forget(campaign, f"d{i % 40 if many else 7}") for i in range(2500)])
    work.send(reports(campaign, range(100, 200)))
    before = len(writes)
    work.turns(1)
    assert len(writes) == before + 1
    assert work.kept() == 0
    forgotten = 40 if many else 1
    assert counts_of(store, campaign, 0) == {FUEL: [0, 140 - forgotten, 0, 0]}
    assert store.requests() == {"done": forgotten, "repeated": 2500 - forgotten}
    answered = [topic for topic, _ in work.published if topic.endswith("/response")]
    assert len(answered) == len(set(answered)) == forgotten
    page = receipt_page(campaign.manifest, "d7")
    work.turns(4)
    assert receipt_tag(campaign.manifest, 0, "d7") not in tags_on(work, campaign, page)
    assert receipt_tag(campaign.manifest, 0, "d100") in tags_on(
        work, campaign, receipt_page(campaign.manifest, "d100")
    )


def test_a_second_request_changes_nothing_and_is_answered(
    at_work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    """A2, A4: the first one counts; later reports do not."""
    at_work.send([*reports(campaign, range(3)), forget(campaign, "d1")])
    at_work.turns(5)
    pages = dict(at_work.broker.retained)
    at_work.published.clear()
    at_work.send([*reports(campaign, range(1, 2)), forget(campaign, "d1")])
    at_work.turns(5)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 2, 0, 0]}
    assert at_work.store.outcomes() == {Outcome.ACCEPTED: 3, Outcome.FORGOTTEN: 1}
    response = decode_response(dict(at_work.published)[topics.response("d1")])
    assert getattr(response, "status", None) is ResponseStatus.DONE
    assert getattr(response, "rounds", None) == 0
    assert at_work.broker.retained == pages


def test_answers_wait_while_the_broker_answers_nothing(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    """A2: no more publishes are unanswered than may be; none of the answers is lost."""
    at_work.turns(1)
    at_work.send([forget(campaign, f"d{i}") for i in range(250)])
    said = []
    for _ in range(4):
        at_work.published.clear()
        at_work.turns(1)
        said.append(sum(topic.endswith("/response") for topic, _ in at_work.published))
    assert max(said) <= 100
    assert sum(said) == 250


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
