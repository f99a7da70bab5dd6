"""Every way of reporting is counted exactly: real reports, through admission, on every engine."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from collector import ingest
from collector.data_dir import DeviceKey
from collector.links import Message
from collector.records import Campaign
from collector.rounds import sealing
from collector.store import Store
from protocol_spec import Outcome, Report, Result, Topics, decode_report, decode_result, digest8
from protocol_spec.mechanisms import MECHANISMS
from tests.support.collector import (
    FIRST,
    FUEL_INDEX,
    HOUR,
    TOWN_INDEX,
    Device,
    asked,
    open_campaigns,
)
from tests.support.databases import Engine, withdraw

NOW = FIRST + 60


class Opened:
    """A campaign with everything that counts for it."""

    def __init__(self, store: Store, reporting: str, key: DeviceKey, min_reports: int = 1) -> None:
        self.store = store
        manifest = asked(reporting, min_reports=min_reports)
        self.campaign: Campaign = store.open_campaign(manifest, FIRST)
        self.known = open_campaigns(self.campaign, key)
        self.key = key

    def device(self, name: str, attribute: int = FUEL_INDEX) -> Device:
        return Device(self.campaign.manifest, name, attribute)

    def count(self, *messages: Message, now: float = NOW) -> Counter[Outcome]:
        done = ingest.count(messages, self.store, self.known, now)
        return Counter(done.outcomes if done.candidates else self.store.outcomes())

    def outcome(self, message: Message) -> Outcome:
        before = Counter(self.store.outcomes())
        ingest.count([message], self.store, self.known, NOW)
        (found,) = (Counter(self.store.outcomes()) - before).elements()
        return found

    def withdraw(self, name: str) -> int:
        return withdraw(self.store, self.campaign, self.key.number(self.campaign.manifest, name))

    def seal(self, number: int) -> list[Result]:
        at = self.campaign.manifest.rounds.deadline(number)
        return sealing.seal(self.store, self.campaign, number, at)


@pytest.fixture(params=MECHANISMS)
def opened(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Opened:
    return Opened(store, request.param, DeviceKey(tmp_path / "device.key"))


def recounted(message: Message, opened: Opened) -> tuple[int, int, list[int]]:
    """Attribute, channel and supported values of a message, the slow way."""
    report = decode_report(message.payload)
    assert isinstance(report, Report)
    device = (message.topic or "").split("/")[-2]
    way = opened.campaign.manifest.mechanisms[report.attribute]
    channel, body = way.supported(report.body, device)
    return report.attribute, channel, way.counted.supported(body)


def expected(opened: Opened, messages: list[Message]) -> dict[int, list[int]]:
    """The rows of counts that these messages add up to."""
    ways = opened.campaign.manifest.mechanisms
    rows: dict[int, list[int]] = {}
    for message in messages:
        attribute, channel, values = recounted(message, opened)
        way = ways[attribute]
        wide = len(way.channels) > 1
        row = rows.setdefault(attribute, [0] * ((way.k + 1) * len(way.channels) if wide else way.k))
        start = (way.k + 1) * channel if wide else 0
        if wide:
            row[start] += 1
        for value in values:
            row[start + wide + value] += 1
    return rows


def counts(opened: Opened, number: int) -> dict[int, list[int]]:
    tallies = opened.store.tallies(opened.campaign.id, number)
    return {attribute: tally.counts.tolist() for attribute, tally in tallies.items() if tally.n}


def many(opened: Opened, number: int = 0) -> list[Message]:
    return [opened.device(f"d-{i}", i % 3).message(number, i % 4) for i in range(60)]


def test_reports_are_counted_as_what_they_support(opened: Opened) -> None:
    messages = many(opened)
    assert opened.count(*messages) == {Outcome.ACCEPTED: 60}
    assert counts(opened, 0) == expected(opened, messages)


def test_a_report_again_is_counted_once_and_other_bits_are_a_conflict(opened: Opened) -> None:
    device = opened.device("kitchen-7")
    first = device.message(0, 1)
    other = first
    while other.payload == first.payload:
        other = opened.device("kitchen-7").message(0, 1)
    assert opened.count(first) == {Outcome.ACCEPTED: 1}
    assert opened.count(first, first, other) == {Outcome.DUPLICATE: 2, Outcome.CONFLICT: 1}
    assert counts(opened, 0) == expected(opened, [first])


def test_an_attribute_is_for_life(opened: Opened) -> None:
    opened.count(opened.device("kitchen-7", FUEL_INDEX).message(0, 1))
    changed = opened.device("kitchen-7", TOWN_INDEX).message(1, 1)
    assert opened.count(changed, now=NOW + HOUR) == {Outcome.ATTRIBUTE_CHANGED: 1}
    opened.seal(0)
    assert opened.count(changed, now=NOW + HOUR) == {Outcome.ATTRIBUTE_CHANGED: 1}


def test_an_attribute_is_for_life_although_the_round_was_not_released(
    store: Store, tmp_path: Path
) -> None:
    for reporting in MECHANISMS:
        key = DeviceKey(tmp_path / f"{reporting}.key")
        opened = Opened(store, reporting, key, min_reports=50)
        opened.count(opened.device("kitchen-7", FUEL_INDEX).message(0, 1))
        assert all(result.withheld for result in opened.seal(0))
        changed = opened.device("kitchen-7", TOWN_INDEX).message(1, 1)
        assert opened.count(changed, now=NOW + HOUR) == {Outcome.ATTRIBUTE_CHANGED: 1}


def test_a_withdrawn_report_leaves_no_trace_in_the_counts(opened: Opened) -> None:
    messages = many(opened)
    opened.count(*messages)
    leaving = opened.device("leaving-1", TOWN_INDEX)
    opened.count(leaving.message(0, 7), leaving.message(1, 7), now=NOW + HOUR)
    assert opened.withdraw("leaving-1") == 2
    assert counts(opened, 0) == expected(opened, messages)
    assert counts(opened, 1) == {}
    assert opened.withdraw("leaving-1") == 0


def test_results_of_real_reports_decode_and_keep_their_bytes(
    opened: Opened, engine: Engine, tmp_path: Path
) -> None:
    """I10: the same reports at another collector, in another order, give the same bytes."""
    rounds = [many(opened, number) for number in range(3)]
    made = []
    with closing(engine.open("twin")) as store:
        twin = Opened(store, opened.campaign.manifest.reporting, DeviceKey(tmp_path / "twin.key"))
        for number, messages in enumerate(rounds):
            opened.count(*messages, now=NOW + number * HOUR)
            for message in reversed(messages):
                twin.count(message, now=NOW + number * HOUR)
            results = opened.seal(number)
            assert [r.encode() for r in twin.seal(number)] == [r.encode() for r in results]
            made += results
    for result in made:
        decoded = decode_result(result.encode())
        assert isinstance(decoded, Result), decoded
        assert decoded.encode() == result.encode()
        assert not decoded.withheld
        assert decoded.reporting == opened.campaign.manifest.reporting
        assert (decoded.numbers is not None) <= (decoded.attribute == "power")
    stored = [result.encode() for result in opened.store.results(opened.campaign.id)]
    assert set(stored) <= {result.encode() for result in made}


# --- refused --------------------------------------------------------------------------------------


def test_all_bodies_have_one_length_and_end_in_zeros(opened: Opened) -> None:
    manifest = opened.campaign.manifest
    topic = Topics(manifest.campaign).report("kitchen-7")
    lengths = set()
    for attribute in range(3):
        message = opened.device("kitchen-7", attribute).message(0, 1)
        report = decode_report(message.payload)
        assert isinstance(report, Report)
        lengths.add(len(message.payload))
        answer = manifest.mechanisms[attribute].answer_bytes
        for body, why in [
            (report.body + b"\0", Outcome.BAD_LENGTH),
            (report.body[:-1], Outcome.BAD_LENGTH),
            (report.body[:-1] + b"\1", Outcome.BAD_PADDING),
        ]:
            if why is Outcome.BAD_PADDING and answer == manifest.body_bytes:
                continue
            bad = Report(digest8(manifest), 0, attribute, body)
            assert opened.outcome(Message(topic, bad.encode())) is why
    assert len(lengths) == 1


@pytest.mark.parametrize(
    ("reporting", "start"), [("hashed", b"\2"), ("nested", b"\0"), ("nested", b"\xff")]
)
def test_cells_and_levels_that_do_not_exist_are_refused(
    store: Store, tmp_path: Path, reporting: str, start: bytes
) -> None:
    opened = Opened(store, reporting, DeviceKey(tmp_path / "device.key"))
    manifest = opened.campaign.manifest
    body = start.ljust(manifest.body_bytes, b"\0")
    bad = Report(digest8(manifest), 0, FUEL_INDEX, body).encode()
    assert opened.outcome(Message(Topics(manifest.campaign).report("d-1"), bad)) is (
        Outcome.BAD_VALUE
    )
