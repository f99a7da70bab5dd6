"""Any history of batches, sealings, withdrawals and restarts: counts agree with a model in plain
dictionaries, and no sum or difference of published results is about fewer devices than it takes."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Candidate, Refusal
from collector.rounds import sealing
from collector.rounds.sealing import delete_expired
from collector.store import Store
from protocol_spec import Manifest, Outcome, Result, decode_result
from protocol_spec.mechanisms import MECHANISMS
from tests.support.collector import (
    FIRST,
    asked,
    candidate,
    counts_of,
    recount,
    seal,
    three_questions,
)
from tests.support.databases import ENGINES, withdraw
from tests.support.harness import QUICK_DISK

ROUNDS, DEVICES = 4, 5
EXAMPLES = {"sqlite": 60, "postgres": 12}  # which sends some 40,000 queries to a server
MANIFEST = three_questions(count=ROUNDS)
Answer = tuple[int, bytes]


@dataclass
class Model:
    """What a collector must know, in plain dictionaries."""

    reports: dict[tuple[int, int], Answer] = field(default_factory=dict)
    final: dict[int, list[Answer]] = field(default_factory=dict)
    attribute: dict[int, int] = field(default_factory=dict)
    sent: list[list[int]] = field(default_factory=list)  # [attribute, rounds] of sealed devices
    known: dict[int, list[int]] = field(default_factory=dict)  # device: its entry in `sent`
    outcomes: Counter[tuple[int, Outcome]] = field(default_factory=Counter)
    received: int = 0
    forgotten: set[int] = field(default_factory=set)

    def commit(self, batch: Sequence[Candidate], refusals: Sequence[Refusal]) -> list[Outcome]:
        outcomes = {}
        rounds = list(dict.fromkeys(c.round for c in batch))
        for i in sorted(range(len(batch)), key=lambda i: rounds.index(batch[i].round)):
            outcomes[i] = self._judge(batch[i])
            self.outcomes[batch[i].campaign, outcomes[i]] += 1
        self.outcomes.update((r.campaign, r.outcome) for r in refusals)
        self.received += len(batch) + len(refusals)
        return [outcomes[i] for i in range(len(batch))]

    def _judge(self, c: Candidate) -> Outcome:
        if c.round in self.final:
            return Outcome.LATE
        if c.device in self.forgotten:
            return Outcome.FORGOTTEN
        elsewhere = {a for (r, d), (a, _) in self.reports.items() if d == c.device and r != c.round}
        elsewhere |= {self.known[c.device][0]} if c.device in self.known else set()
        if elsewhere - {c.attribute}:
            return Outcome.ATTRIBUTE_CHANGED
        if (c.round, c.device) in self.reports:
            same = self.reports[c.round, c.device] == (c.attribute, c.body)
            return Outcome.DUPLICATE if same else Outcome.CONFLICT
        self.reports[c.round, c.device] = (c.attribute, c.body)
        return Outcome.ACCEPTED

    def seal(self, number: int) -> None:
        mine = {d: answer for (r, d), answer in self.reports.items() if r == number}
        self.final[number] = list(mine.values())
        for device, (attribute, _) in mine.items():
            if device not in self.known:
                self.known[device] = [attribute, 0]
                self.sent.append(self.known[device])
            self.known[device][1] += 1
            del self.reports[number, device]

    def withdraw(self, device: int) -> int:
        gone = [key for key in self.reports if key[1] == device]
        for key in gone:
            del self.reports[key]
        self.known.pop(device, None)
        self.forgotten.add(device)
        return len(gone)

    def answers(self, number: int) -> list[Answer]:
        if number in self.final:
            return self.final[number]
        return [answer for (r, _), answer in self.reports.items() if r == number]


class StoreMachine(RuleBasedStateMachine):
    """The engine and the model side by side."""

    engine = "sqlite"

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=QUICK_DISK)
        # Chunks of three, so that every batch has ends of chunks in it.
        self.stores = ENGINES[self.engine](Path(self.directory.name), chunk=3)
        self.store: Store = self.stores.open()
        self.campaign: Campaign = self.store.open_campaign(MANIFEST, FIRST)
        self.model = Model()

    @rule(
        picks=st.lists(
            st.tuples(
                st.integers(0, ROUNDS - 1),
                st.integers(0, DEVICES - 1),
                st.integers(0, 2),
                st.integers(0, 2),
            ),
            max_size=12,
        ),
        refused=st.integers(0, 2),
    )
    def commit(self, picks: list[tuple[int, int, int, int]], refused: int) -> None:
        batch = [candidate(self.campaign, d, r, a, 3 * b + 1) for r, d, a, b in picks]
        refusals = [
            Refusal(self.campaign.id, NO_ROUND, Outcome.MALFORMED),
            Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.TOPIC_MISMATCH),
        ][:refused]
        assert list(self.store.commit(batch, refusals)) == self.model.commit(batch, refusals)

    @precondition(lambda self: len(self.model.final) < ROUNDS)
    @rule()
    def seal(self) -> None:
        number = len(self.model.final)
        self.model.seal(number)
        assert seal(self.store, self.campaign, number)
        assert not seal(self.store, self.campaign, number)

    @rule(device=st.integers(0, DEVICES - 1))
    def withdraw(self, device: int) -> None:
        assert withdraw(self.store, self.campaign, device) == self.model.withdraw(device)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.stores.open()

    @invariant()
    def every_message_has_one_outcome(self) -> None:
        counted = sum(self.store.outcomes().values())
        assert counted == self.store.received() == self.model.received
        for campaign in (NO_CAMPAIGN, self.campaign.id):
            expected = {o: n for (c, o), n in self.model.outcomes.items() if c == campaign}
            assert self.store.outcomes(campaign) == expected

    @invariant()
    def counts_are_a_recount(self) -> None:
        forms = MANIFEST.body_formats
        for number in range(ROUNDS):
            bodies = defaultdict[int, list[bytes]](list)
            for attribute, body in self.model.answers(number):
                bodies[attribute].append(body)
            expected = {a: recount(found, forms[a]) for a, found in bodies.items()}
            assert counts_of(self.store, self.campaign, number) == expected

    @invariant()
    def participation_is_known(self) -> None:
        for attribute in range(3):
            rounds = Counter(m for a, m in self.model.sent if a == attribute)
            expected = (sorted(rounds), [rounds[m] for m in sorted(rounds)])
            assert self.store.participation(self.campaign.id, attribute) == expected

    @invariant()
    def reports_of_open_rounds_are_all_there_is(self) -> None:
        tags = {r: self.store.receipt_tags(self.campaign.id, r) for r in range(ROUNDS)}
        stored = [(number, device) for number, found in tags.items() for _, device in found]
        assert sorted(stored) == sorted(self.model.reports)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.directory.cleanup()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_any_sequence_agrees_with_the_model(engine: str) -> None:
    machine = type("Machine", (StoreMachine,), {"engine": engine})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=EXAMPLES[engine], stateful_step_count=20),
    )


# --- no published result, sum or difference of results is about too few devices -------------------


RELEASED_ROUNDS, RELEASED_DEVICES, ENOUGH = 7, 9, 4
VALUES = [f"r{number}" for number in range(RELEASED_ROUNDS)]
QUESTIONS = "".join(
    f'[[attributes]]\nname = "{name}"\nquestion = "?"\nvalues = {VALUES}\n' for name in ("a", "b")
)
MANIFESTS: dict[str, Manifest] = {
    mechanism: asked(
        mechanism,
        min_reports=ENOUGH,
        count=RELEASED_ROUNDS,
        each=RELEASED_ROUNDS,
        attributes=QUESTIONS,
    )
    for mechanism in MECHANISMS
}


def marked(campaign: Campaign, number: int, device: int, level: int = 0) -> Candidate:
    """In round r every report supports value r alone: so the counts of a result show how many
    reports of which round are in it, and what can be found by subtracting is plain."""
    attribute = device % 2
    mechanism = campaign.manifest.mechanisms[attribute]
    body = mechanism.counted.encode(number)
    if len(mechanism.channels) > 1:
        body = bytes((level % len(mechanism.channels),)) + body
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


class PublishedCampaign:
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


SOMEONE = st.sets(st.integers(0, RELEASED_DEVICES - 1), max_size=RELEASED_DEVICES)
FEW = st.sets(st.integers(0, RELEASED_DEVICES - 1), max_size=2)


# Round by round: who reports, and who of all is forgotten before the sealing.
HISTORIES = st.lists(st.tuples(SOMEONE, FEW), min_size=RELEASED_ROUNDS, max_size=RELEASED_ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reporting", [name for name in MECHANISMS if name != "nested"])
def test_no_difference_is_about_too_few(reporting: str, engine: str) -> None:
    @settings(max_examples=30 if engine == "sqlite" else 8)
    @given(HISTORIES)
    @example([({0}, set())] * RELEASED_ROUNDS)
    @example([({0, 2, 4, 6, 8}, set()), ({0}, set())] * 3 + [({2}, set())])
    def holds(history: list[tuple[set[int], set[int]]]) -> None:
        with tempfile.TemporaryDirectory(dir=QUICK_DISK) as directory:
            store = ENGINES[engine](Path(directory)).open()
            with closing(store):
                _play(PublishedCampaign(store, reporting), history)

    holds()


def _play(collection: PublishedCampaign, history: list[tuple[set[int], set[int]]]) -> None:
    for number, (reporting, leaving) in enumerate(history):
        collection.report(number, reporting)
        for device in leaving:
            collection.withdraw(number, device)
        collection.seal(number)
    for index, published in enumerate(collection.published.values()):
        for numbers in published.parts():
            assert published.effective_devices(numbers) >= ENOUGH - 1e-9, numbers
        _check_what_is_kept(collection, index, published)


def _check_what_is_kept(collection: PublishedCampaign, index: int, published: Published) -> None:
    """After the last round: counts of parts that were released, and nothing of any other."""
    parts = list(published.parts())
    store, campaign = collection.store, collection.campaign.id
    for number in range(RELEASED_ROUNDS):
        tally = store.tallies(campaign, number).get(index)
        if tally is not None and tally.n and tally.counts.size:
            assert [number] in parts
    assert store.unreleased(campaign, index) is None
    assert store.participation(campaign, index, released=False) == ([], [])
    released = store.released(campaign, index)
    seen = {number for numbers in parts for number in numbers}
    expected = [len(published.who[n]) if n in seen else 0 for n in range(RELEASED_ROUNDS)]
    found = (
        [0] * RELEASED_ROUNDS
        if released is None
        else released.tally.counts.tolist()[:RELEASED_ROUNDS]
    )
    assert found == expected
    if released is not None:
        assert (released.first, released.last) == (min(seen), max(seen))
        assert (released.rounds, released.tally.n) == (len(seen), sum(expected))


# --- nested: every device heard so far, by its latest report --------------------------------------


@dataclass
class Latest:
    """Of one attribute: the round of each device's latest report, who sent another one since the
    last release, and what was released."""

    rounds: dict[int, int] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    released: Counter[int] | None = None

    def report(self, number: int, devices: set[int]) -> None:
        self.rounds |= dict.fromkeys(devices, number)
        self.changed |= devices

    def seal(self) -> None:
        if len(self.changed) >= ENOUGH:
            self.released = Counter(self.rounds.values())
            self.changed.clear()

    def check(self, result: Result) -> None:
        assert result.withheld == (self.released is None)
        if self.released is None:
            assert result.n == len(self.rounds) < ENOUGH
        else:
            counts = [self.released[value] for value in range(RELEASED_ROUNDS)]
            assert (list(result.counts)[:RELEASED_ROUNDS], result.n) == (
                counts,
                self.released.total(),
            )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_devices_are_released_by_their_latest_reports_when_enough_changed(engine: str) -> None:
    """What two releases differ in are the reports of at least so many devices, and of those that
    were forgotten; nothing else of any round is ever seen or kept."""

    @settings(max_examples=30 if engine == "sqlite" else 8)
    @given(HISTORIES)
    @example([({0, 2, 4, 6}, set()), ({0}, set()), ({2, 4}, {6})] + [({8}, set())] * 4)
    def holds(history: list[tuple[set[int], set[int]]]) -> None:
        with tempfile.TemporaryDirectory(dir=QUICK_DISK) as directory:
            store = ENGINES[engine](Path(directory)).open()
            with closing(store):
                _play_nested(PublishedCampaign(store, "nested"), history)

    holds()


def _play_nested(collection: PublishedCampaign, history: list[tuple[set[int], set[int]]]) -> None:
    models = {"a": Latest(), "b": Latest()}
    store, campaign = collection.store, collection.campaign
    for number, (reporting, leaving) in enumerate(history):
        collection.report(number, reporting)
        for index, model in enumerate(models.values()):
            model.report(number, {d for d in reporting - collection.left if d % 2 == index})
        for device in leaving:
            collection.withdraw(number, device)
            models["ab"[device % 2]].rounds.pop(device, None)
            models["ab"[device % 2]].changed.discard(device)
        for model in models.values():
            model.seal()
        for result in collection.seal(number):
            models[result.attribute].check(result)
        assert all(not tally.counts.size for tally in store.tallies(campaign.id, number).values())
    assert all(store.unreleased(campaign.id, index) is None for index in range(2))


def test_the_same_report_again_is_no_change(store: Store) -> None:
    """At its last level a device repeats itself: one that is new among these is not released
    alone, nor is one that was forgotten taken out alone."""
    collection = PublishedCampaign(store, "nested")
    campaign = collection.campaign
    for number, devices in enumerate([range(0, 10, 2), range(0, 12, 2), range(0, 12, 2)]):
        batch = [marked(campaign, 0, device)._replace(round=number) for device in devices]
        assert list(store.commit(batch, [])) == [Outcome.ACCEPTED] * len(devices)
        if number == 2:
            withdraw(store, campaign, 0)
        made = [result for result in collection.seal(number) if result.attribute == "a"]
        assert [(result.n, result.withheld) for result in made] == [(5, False)] * 2
    store.commit([marked(campaign, 3, device) for device in range(2, 10, 2)], [])
    made = [result for result in collection.seal(3) if result.attribute == "a"]
    assert {result.counts[:4] for result in made} == {(1, 0, 0, 4)}


# --- groups: nothing published of all devices and of groups is about too few ----------------------

GROUPED_ROUNDS = 5
GROUP_OF = (*(0,) * 6, *(1,) * 5, *(2,) * 3)  # by device
GROUPED_DEVICES = len(GROUP_OF)
_MARKS = [f"{d} in {r}" for d in range(GROUPED_DEVICES) for r in range(GROUPED_ROUNDS)]
GROUPED: dict[str, Manifest] = {
    mechanism: asked(
        mechanism,
        min_reports=2 if mechanism == "once" else 3,  # so that a window can be large enough
        count=GROUPED_ROUNDS,
        each=GROUPED_ROUNDS if mechanism == "once" else None,
        attributes=f'[[attributes]]\nname = "a"\nquestion = "?"\nvalues = {_MARKS}\n'
        '[groups]\nlabel = "region"\nvalues = ["north", "south"]\n',
    )
    for mechanism in MECHANISMS
}
TURNOUT = st.sets(st.integers(0, GROUPED_DEVICES - 1), min_size=3, max_size=GROUPED_DEVICES)
TURNOUTS = st.lists(st.tuples(TURNOUT, FEW), min_size=GROUPED_ROUNDS, max_size=GROUPED_ROUNDS)


def _published_by_group(
    store: Store, reporting: str, history: list[tuple[set[int], set[int]]]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """All counts that were ever given, each report with a mark of its own: of a cell, or of all."""
    campaign, left = store.open_campaign(GROUPED[reporting], FIRST), set[int]()
    (mechanism,), cells = campaign.manifest.mechanisms, campaign.cells(0)
    for number, (devices, leaving) in enumerate(history):
        batch = []
        for device in sorted(devices - left):
            body = mechanism.counted.encode(device * GROUPED_ROUNDS + number)
            if len(mechanism.channels) > 1:
                body = bytes((min(number, len(mechanism.channels) - 1),)) + body
            cell = cells[GROUP_OF[device]]
            batch.append(Candidate(campaign.id, number, device, cell, 0, device, body))
        assert set(store.commit(batch, [])) <= {Outcome.ACCEPTED}
        for device in leaving:
            withdraw(store, campaign, device)
        left |= leaving
        at = campaign.manifest.rounds.deadline(number)
        made = [(0, result) for result in sealing.seal(store, campaign, number, at)]
        for cell in cells:
            made += [
                (cell, r) for n in (number, -1) for r in store.group_results(campaign.id, cell, n)
            ]
        for cell, result in made:
            assert isinstance(decode_result(result.encode()), Result)
            assert cell == 0 or not result.withheld
            if not result.withheld:
                yield cell, result.counts[: len(_MARKS)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reporting", MECHANISMS)
def test_no_combination_of_groups_and_all_is_about_too_few(reporting: str, engine: str) -> None:
    """For any few devices: a combination of all that was published that has none of the others'
    reports in it is nothing at all. And the groups that are known add up to no more than all."""

    @settings(max_examples=20 if engine == "sqlite" else 4)
    @given(TURNOUTS)
    @example([(set(range(14)), set())] * 5)
    @example([(set(range(12)), set()), (set(range(14)), {2}), ({0, *range(3, 9)}, set())] * 2)
    def holds(history: list[tuple[set[int], set[int]]]) -> None:
        with (
            tempfile.TemporaryDirectory(dir=QUICK_DISK) as directory,
            closing(ENGINES[engine](Path(directory)).open()) as store,
        ):
            seen = list(_published_by_group(store, reporting, history[:GROUPED_ROUNDS]))
        if not seen:
            return
        counts = np.unique(np.array([row for _, row in seen], dtype=np.float64), axis=0)
        whose = np.repeat(np.arange(GROUPED_DEVICES), GROUPED_ROUNDS)
        rank = np.linalg.matrix_rank(counts)
        for few in combinations(range(GROUPED_DEVICES), GROUPED[reporting].min_reports - 1):
            assert np.linalg.matrix_rank(counts[:, ~np.isin(whose, few)]) == rank, few

    holds()


# --- mechanism by mechanism, by hand
def collected(store: Store, reporting: str, *sizes: int) -> list[list[Result]]:
    """Results of attribute a, round by round, when so many of the same devices report."""
    collection, made = PublishedCampaign(store, reporting), []
    for number, size in enumerate(sizes):
        collection.report(number, {2 * d for d in range(size)})
        made.append([r for r in collection.seal(number) if r.attribute == "a"])
    return made


@pytest.mark.parametrize("reporting", ["memoized", "hashed"])
def test_small_rounds_wait_until_they_are_enough_together(store: Store, reporting: str) -> None:
    collection = PublishedCampaign(store, reporting)
    found, response = [], []
    for number, devices in enumerate([{0, 2}, {0, 2, 4, 6, 8}, {4}, {6}, {0, 2, 4, 6}]):
        collection.report(number, devices)
        of_round, pooled = [r for r in collection.seal(number) if r.attribute == "a"]
        found.append((of_round.withheld, pooled.n, pooled.rounds, pooled.first, pooled.last))
        response.append((of_round.heard, of_round.returned))
    assert found == [
        (True, 2, 1, 0, 0),  # what there is so far; withheld
        (False, 5, 1, 1, 1),
        (True, 5, 1, 1, 1),
        (True, 9, 4, 0, 3),  # rounds 0, 2 and 3 have four devices
        (False, 13, 5, 0, 4),
    ]
    assert response == [(0, 0), (2, 2), (5, 1), (5, 1), (5, 4)]


def test_what_was_not_released_is_deleted_when_the_campaign_is_closed(store: Store) -> None:
    collected(store, "memoized", 2, 3)
    (campaign,) = store.campaigns()
    delete_expired(store, store.campaigns(), FIRST)
    assert store.unreleased(campaign.id, 0) is not None, "more may come"
    store.close_campaign(campaign, FIRST + 1)
    delete_expired(store, store.campaigns(), FIRST + 1)
    assert store.unreleased(campaign.id, 0) is None
    assert store.participation(campaign.id, 0, released=False) == ([], [])


def test_windows_of_once_do_not_overlap(store: Store) -> None:
    collection = PublishedCampaign(store, "once")
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
