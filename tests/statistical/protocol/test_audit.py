"""Every mechanism as a black box: no event tells two histories apart by more than epsilon.

The real randomisers are run many times for two histories, and what leaves them is counted. If it
told more than the nominal epsilon, some event would show a ratio above e^epsilon even at the
favourable ends of both Clopper-Pearson intervals. The bounds hold with 99 % together; the
randomness is a seeded stream, so a verdict is the same in every run. The most telling event is
known from theory and the bound it gives is close to epsilon: an audit that finds nothing would
find nothing wrong either. Controls are broken on purpose.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable

import pytest

from protocol_spec import Randomiser, calibrate
from protocol_spec.mechanisms import (
    Hashed,
    HashedRandomiser,
    Nested,
    NestedRandomiser,
    Once,
    OnceRandomiser,
)
from protocol_spec.randomiser import Entropy
from tests.support.confidence import lower_bound, upper_bound
from tests.support.protocol.entropy import seeded

Life = Callable[[], Hashable]  # all that one device sends
Devices = Callable[[Entropy], Life]  # which draw from that entropy
TRIALS = 15_000


def proven(one: Devices, other: Devices, seed: str) -> float:
    """The largest epsilon that some event proves, either way, at 99 %."""
    lives = [devices(seeded(f"{seed}/{i}")) for i, devices in enumerate((one, other))]
    first, second = (Counter(life() for _ in range(TRIALS)) for life in lives)
    events = [e for e in first | second if max(first[e], second[e]) >= 50]
    risk = 0.01 / (4 * len(events))
    return max(
        _log_ratio(a[event], b[event], risk)
        for event in events
        for a, b in ((first, second), (second, first))
    )


def _log_ratio(more: int, less: int, risk: float) -> float:
    low = lower_bound(more, TRIALS, risk)
    return math.log(low / upper_bound(less, TRIALS, risk)) if low else 0.0


def check(one: Devices, other: Devices, epsilon: float, seed: str, power: float = 0.75) -> float:
    """What is proven: no more than epsilon, and not much less."""
    found = proven(one, other, seed)
    assert found <= epsilon, f"{found:.3f} of {epsilon} with seed {seed}"
    assert found > power * epsilon, f"no power: {found:.3f} of {epsilon} with seed {seed}"
    return found


# --- one round for life ---------------------------------------------------------------------------


def once_devices(once: Once, history: list[int], with_rounds: bool = False) -> Devices:
    """Of bits only those of the first two values: the others do not depend on which it is."""

    def devices(entropy: Entropy) -> Life:
        randomiser = OnceRandomiser(once, entropy)

        def life() -> Hashable:
            rounds = randomiser.rounds()
            answers = [randomiser.memoize(history[r]) for r in rounds]
            said = tuple(a[0] >> 6 if once.calibration.unary else a[0] for a in answers)
            return (rounds, said) if with_rounds else said

        return life

    return devices


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1.0), (4, 2.0), (11, 1.0)])
def test_once(k: int, epsilon: float) -> None:
    """The value of every round differs: whichever is drawn, no more is told."""
    once = Once.calibrate(k=k, epsilon=epsilon, rounds=3)
    seed = f"once-{k}-{epsilon}"
    zeros, ones = (once_devices(once, [v, v, v]) for v in (0, 1))
    check(zeros, ones, epsilon, seed)
    still = once_devices(once, [0, 0, 0], with_rounds=True)
    changing = once_devices(once, [1, 2 % k, 1], with_rounds=True)
    assert proven(still, changing, seed) <= epsilon


def test_once_for_two_rounds_tells_twice() -> None:
    once = Once.calibrate(k=3, epsilon=1.0, rounds=3, each=2)
    one, other = (once_devices(once, [v, v, v]) for v in (0, 1))
    assert check(one, other, 2.0, "once-twice") > 1.0, "a control: two answers tell more than one"


# --- two cells -----------------------------------------------------------------------------------


def hashed_devices(hashed: Hashed, values: list[int], forgetful: bool = False) -> Devices:
    """Values 0 and 1 are in cells 0 and 1; a forgetful device draws a memo for every report."""

    def devices(entropy: Entropy) -> Life:
        randomiser = HashedRandomiser(hashed, bytes([0b01000000]), entropy)

        def life() -> Hashable:
            memos: dict[int, bytes] = {}
            said = []
            for cell in map(randomiser.key, values):
                if cell not in memos or forgetful:
                    memos[cell] = randomiser.memoize(cell)
                said.append(randomiser.report(memos[cell]))
            return tuple(said)

        return life

    return devices


HASHED = Hashed.calibrate(k=2, eps_inf=2.0, eps_1=0.6)
LOUD = Hashed.calibrate(k=2, eps_inf=1.0, eps_1=0.7)


def test_one_report_of_a_cell() -> None:
    check(hashed_devices(HASHED, [0]), hashed_devices(HASHED, [1]), 0.6, "hashed-1")


@pytest.mark.parametrize("reports", [3, 6])
def test_many_reports_of_a_cell_tell_eps_t(reports: int) -> None:
    nominal = LOUD.cell.epsilon_after(reports)
    one, other = (hashed_devices(LOUD, [cell] * reports) for cell in (0, 1))
    check(one, other, nominal, f"hashed-{reports}")
    assert nominal < 1.0


def test_cells_that_change_at_the_same_moments() -> None:
    one, other = hashed_devices(LOUD, [0, 0, 1, 1]), hashed_devices(LOUD, [1, 1, 0, 0])
    spent = LOUD.spending([2, 2])
    check(one, other, spent.exact, "hashed-pattern")
    assert spent.exact < spent.charged == 2.0


def test_that_a_cell_changed_is_told_beyond_the_ledger() -> None:
    """No fault: it is what owners are told. The exact ratio is above the ledger's 2 x eps_inf."""
    never, changed = hashed_devices(LOUD, [0] * 8), hashed_devices(LOUD, [0] * 4 + [1] * 4)
    assert proven(never, changed, "hashed-change") > LOUD.lifetime_epsilon


def test_a_memo_drawn_every_round_is_noticed() -> None:
    one, other = (hashed_devices(LOUD, [cell] * 6, forgetful=True) for cell in (0, 1))
    assert proven(one, other, "hashed-forgetful") > LOUD.cell.eps_inf


# --- nested --------------------------------------------------------------------------------------


def nested_devices(nested: Nested, value: int, levels: slice) -> Devices:
    """The reports of some of the levels."""

    def devices(entropy: Entropy) -> Life:
        randomiser = NestedRandomiser(nested, entropy)
        return lambda: randomiser.draw(value)[levels]

    return devices


NESTED = Nested.calibrate("GRR", k=3, schedule=[0.6, 1.2, 2.0])
BITS = Nested.calibrate("OUE", k=2, schedule=[0.6, 1.2, 2.0])


@pytest.mark.parametrize("reports", [1, 2, 3])
@pytest.mark.parametrize("nested", [NESTED, BITS], ids=["GRR", "OUE"])
def test_nested(nested: Nested, reports: int) -> None:
    one, other = (nested_devices(nested, value, slice(reports)) for value in (0, 1))
    check(one, other, nested.epsilon_after(reports), f"nested-{nested.protocol}-{reports}", 0.7)


def test_a_late_report_alone_tells_all_that_was_told() -> None:
    one, other = (nested_devices(NESTED, value, slice(2, 3)) for value in (0, 1))
    assert check(one, other, 2.0, "nested-last") > 0.6, "far more than the first report"


def test_levels_that_are_drawn_apart_are_noticed() -> None:
    """A control: each level from the value by itself is right alone, and too much together."""

    def apart(value: int) -> Devices:
        def devices(entropy: Entropy) -> Life:
            randomiser = NestedRandomiser(NESTED, entropy)
            return lambda: tuple(randomiser.draw(value)[level] for level in range(3))

        return devices

    assert proven(apart(0), apart(1), "nested-apart") > 2.0


# --- the memo, for comparison ---------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_memoized(protocol: str) -> None:
    calibration = calibrate(protocol, k=2, eps_inf=1.0, eps_1=0.7)

    def memoizing(value: int) -> Devices:
        def devices(entropy: Entropy) -> Life:
            randomiser = Randomiser(calibration, entropy)

            def life() -> Hashable:
                memo = randomiser.memoize(value)
                return tuple(randomiser.report(memo) for _ in range(2))

            return life

        return devices

    check(memoizing(0), memoizing(1), calibration.epsilon_after(2), f"memo-{protocol}")
