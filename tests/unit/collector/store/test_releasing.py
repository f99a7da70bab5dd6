"""No published result, sum or difference of results is about fewer devices than it takes.

Reports are marked: in round r every report supports value r alone, so that the counts of a result
say how many reports of which round are in it, and what can be found by subtracting is plain.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collector.records import Campaign, Candidate
from collector.rounds import sealing
from collector.rounds.sealing import delete_expired
from collector.store import Store
from protocol_spec import Manifest, Outcome, Result, decode_result
from protocol_spec.mechanisms import MECHANISMS
from tests.support.collector import FIRST, asked
from tests.support.databases import ENGINES, withdraw
from tests.support.harness import QUICK_DISK

ROUNDS, DEVICES, ENOUGH = 7, 9, 4
VALUES = [f"r{number}" for number in range(ROUNDS)]
QUESTIONS = "".join(
    f'[[attributes]]\nname = "{name}"\nquestion = "?"\nvalues = {VALUES}\n' for name in ("a", "b")
)
MANIFESTS: dict[str, Manifest] = {
    way: asked(way, min_reports=ENOUGH, count=ROUNDS, attributes=QUESTIONS) for way in MECHANISMS
}


def marked(campaign: Campaign, number: int, device: int, level: int = 0) -> Candidate:
    """Supports the value that is the round's number."""
    attribute = device % 2
    way = campaign.manifest.mechanisms[attribute]
    body = way.counted.encode(number)
    if len(way.channels) > 1:
        body = bytes((level % len(way.channels),)) + body
    return Candidate(campaign.id, number, device, attribute, 0, device, body)


@dataclass
class Published:
    """Everything that anybody ever saw of one attribute, and who was in which round."""

    seen: list[tuple[int, ...]] = field(default_factory=list)
    who: dict[int, list[object]] = field(default_factory=lambda: defaultdict(list))

    def parts(self) -> Iterator[list[int]]:
        """Rounds that no sum or difference of what was seen can tell apart, and that are seen."""
        columns = defaultdict(list)
        for number, senders in self.who.items():
            if senders:
                shares = tuple(counts[number] / len(senders) for counts in self.seen)
                assert set(shares) <= {0.0, 1.0}, "a round is in a result as a whole or not at all"
                columns[shares].append(number)
        for shares, numbers in columns.items():
            if any(shares):
                yield numbers

    def effective_devices(self, numbers: list[int]) -> float:
        sent = Counter(sender for number in numbers for sender in self.who[number]).values()
        return sum(sent) ** 2 / sum(m * m for m in sent)


class Collection:
    """A campaign whose published messages are all kept."""

    def __init__(self, store: Store, reporting: str) -> None:
        self.store = store
        self.campaign = store.open_campaign(MANIFESTS[reporting], FIRST)
        self.published = {name: Published() for name in ("a", "b")}
        self.left: set[int] = set()  # not counted again

    def report(self, number: int, devices: set[int]) -> None:
        batch = [marked(self.campaign, number, d, level=number) for d in sorted(devices)]
        counted = dict(zip(sorted(devices), self.store.commit(batch, [])))
        assert counted == {
            d: Outcome.FORGOTTEN if d in self.left else Outcome.ACCEPTED for d in devices
        }
        for d in devices - self.left:
            self.published["ab"[d % 2]].who[number].append(d)

    def withdraw(self, number: int, device: int) -> None:
        """Before its round is sealed, or after."""
        withdraw(self.store, self.campaign, device)
        who = self.published["ab"[device % 2]].who[number]
        if device in who:
            who.remove(device)
        self.left.add(device)

    def seal(self, number: int) -> list[Result]:
        made = sealing.seal(
            self.store, self.campaign, number, self.campaign.manifest.rounds.deadline(number)
        )
        for result in made:
            assert isinstance(decode_result(result.encode()), Result)
            if not result.withheld:
                self.published[result.attribute].seen.append(result.counts)
        return made


SOMEONE = st.sets(st.integers(0, DEVICES - 1), max_size=DEVICES)
FEW = st.sets(st.integers(0, DEVICES - 1), max_size=2)
# Round by round: who reports, and who of all is forgotten before the sealing.
HISTORIES = st.lists(st.tuples(SOMEONE, FEW), min_size=ROUNDS, max_size=ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reporting", MECHANISMS)
def test_no_difference_is_about_too_few(reporting: str, engine: str) -> None:
    @settings(max_examples=30 if engine == "sqlite" else 8)
    @given(HISTORIES)
    @example([({0}, set())] * ROUNDS)
    @example([({0, 2, 4, 6, 8}, set()), ({0}, set())] * 3 + [({2}, set())])
    def holds(history: list[tuple[set[int], set[int]]]) -> None:
        with tempfile.TemporaryDirectory(dir=QUICK_DISK) as directory:
            store = ENGINES[engine](Path(directory)).open()
            with closing(store):
                _play(Collection(store, reporting), history)

    holds()


def _play(collection: Collection, history: list[tuple[set[int], set[int]]]) -> None:
    for number, (reporting, leaving) in enumerate(history):
        collection.report(number, reporting)
        for device in leaving:
            collection.withdraw(number, device)
        collection.seal(number)
    for index, published in enumerate(collection.published.values()):
        for numbers in published.parts():
            assert published.effective_devices(numbers) >= ENOUGH - 1e-9, numbers
        _check_what_is_kept(collection, index, published)


def _check_what_is_kept(collection: Collection, index: int, published: Published) -> None:
    """After the last round: counts of parts that were released, and nothing of any other."""
    parts = list(published.parts())
    store, campaign = collection.store, collection.campaign.id
    for number in range(ROUNDS):
        tally = store.tallies(campaign, number).get(index)
        if tally is not None and tally.n and tally.counts.size:
            assert [number] in parts
    assert store.unreleased(campaign, index) is None
    assert store.participation(campaign, index, released=False) == ([], [])
    released = store.released(campaign, index)
    if collection.campaign.manifest.reporting != "nested":
        seen = {number for numbers in parts for number in numbers}
        expected = [len(published.who[n]) if n in seen else 0 for n in range(ROUNDS)]
        found = [0] * ROUNDS if released is None else released.tally.counts.tolist()[:ROUNDS]
        assert found == expected
        if released is not None:
            assert (released.first, released.last) == (min(seen), max(seen))
            assert (released.rounds, released.tally.n) == (len(seen), sum(expected))


# --- way by way, by hand --------------------------------------------------------------------------


def collected(store: Store, reporting: str, *sizes: int) -> list[list[Result]]:
    """Results of attribute a, round by round, when so many of the same devices report."""
    collection, made = Collection(store, reporting), []
    for number, size in enumerate(sizes):
        collection.report(number, {2 * d for d in range(size)})
        made.append([r for r in collection.seal(number) if r.attribute == "a"])
    return made


@pytest.mark.parametrize("reporting", ["memoized", "hashed"])
def test_small_rounds_wait_until_they_are_enough_together(store: Store, reporting: str) -> None:
    collection = Collection(store, reporting)
    told = []
    for number, devices in enumerate([{0, 2}, {0, 2, 4, 6, 8}, {4}, {6}, {0, 2, 4, 6}]):
        collection.report(number, devices)
        of_round, pooled = [r for r in collection.seal(number) if r.attribute == "a"]
        told.append((of_round.withheld, pooled.n, pooled.rounds, pooled.first, pooled.last))
    assert told == [
        (True, 2, 1, 0, 0),  # what there is so far; withheld
        (False, 5, 1, 1, 1),
        (True, 5, 1, 1, 1),
        (True, 9, 4, 0, 3),  # rounds 0, 2 and 3 have four devices
        (False, 13, 5, 0, 4),
    ]


def test_a_few_devices_over_many_rounds_are_still_a_few(store: Store) -> None:
    """Seven rounds of the same three devices are never released, whatever they add up to."""
    made = collected(store, "memoized", *[3] * ROUNDS)
    assert all(result.withheld for results in made for result in results)
    assert [pooled.n for _, pooled in made] == [3 * (i + 1) for i in range(ROUNDS)]
    assert {pooled.n_eff for _, pooled in made} == {3.0}


def test_windows_of_once_do_not_overlap(store: Store) -> None:
    collection = Collection(store, "once")
    windows = []
    for number, devices in enumerate([{0}, {2, 4}, set(), {6, 8}, {10}, {12, 14, 16, 18}]):
        collection.report(number, devices)
        window, pooled = [r for r in collection.seal(number) if r.attribute == "a"]
        windows.append((window.round, window.first, window.last, window.n, window.withheld))
    assert windows == [
        (0, 0, 0, 1, True),
        (None, 0, 1, 3, True),
        (None, 0, 2, 3, True),
        (None, 0, 3, 5, False),
        (4, 4, 4, 1, True),
        (None, 4, 5, 5, False),
    ]
    assert (pooled.n, pooled.devices, pooled.first, pooled.last, pooled.rounds) == (10, 10, 0, 5, 5)


def test_nested_rounds_are_not_added_up(store: Store) -> None:
    """The latest released round stands for all; a withheld one changes nothing."""
    made = collected(store, "nested", 2, 5, 3, 5)
    assert [results[0].withheld for results in made] == [True, False, True, False]
    pooled = [results[1:] for results in made]
    assert [[(r.n, r.first, r.last, r.withheld) for r in found] for found in pooled] == [
        [(2, 0, 0, True)],
        [(5, 1, 1, False)],
        [],
        [(5, 3, 3, False)],
    ]
    (latest,) = store.results(store.campaigns()[0].id, 0, range(-1, 0))
    assert latest.encode() == pooled[-1][0].encode()
    assert store.tallies(1, 2)[0].counts.size == 0


def test_what_can_never_be_released_goes_when_the_campaign_is_closed(store: Store) -> None:
    collected(store, "memoized", 2, 3)
    (campaign,) = store.campaigns()
    assert store.unreleased(campaign.id, 0) is not None
    delete_expired(store, store.campaigns(), FIRST)
    assert store.unreleased(campaign.id, 0) is not None, "more may come"
    store.close_campaign(campaign, FIRST + 1)
    delete_expired(store, store.campaigns(), FIRST + 1)
    assert store.unreleased(campaign.id, 0) is None
    assert store.participation(campaign.id, 0, released=False) == ([], [])
