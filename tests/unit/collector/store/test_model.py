"""Any sequence of batches, sealings, withdrawals and restarts, against a dictionary."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
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
from collector.store import Store
from protocol_spec import Outcome
from tests.support.collector import FIRST, candidate, counts_of, recount, seal, three_questions
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
        told = {}
        rounds = list(dict.fromkeys(c.round for c in batch))
        for i in sorted(range(len(batch)), key=lambda i: rounds.index(batch[i].round)):
            told[i] = self._judge(batch[i])
            self.outcomes[batch[i].campaign, told[i]] += 1
        self.outcomes.update((r.campaign, r.outcome) for r in refusals)
        self.received += len(batch) + len(refusals)
        return [told[i] for i in range(len(batch))]

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
