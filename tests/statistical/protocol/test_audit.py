"""Every mechanism as a black box: no event distinguishes two histories by more than epsilon.

The real randomisers run many times for two histories, and their output is counted. If it disclosed
more than the nominal epsilon, some event would show a ratio above e^epsilon even at the favourable
ends of both Clopper-Pearson intervals. The bounds hold with 99 % together; the randomness is a
seeded stream, so a verdict is the same in every run. The most revealing event is known from theory
and its bound is close to epsilon, so the audit has power. Controls are broken on purpose.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar

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
from tests.support.protocol.entropy import seeded
from tests.support.protocol.statistics import lower_bound, upper_bound

Drawing = TypeVar("Drawing", bound=Randomiser)
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


def devices_of(make: Callable[[Entropy], Drawing], live: Callable[[Drawing], Hashable]) -> Devices:
    """Devices that send what `live` returns, each with a randomiser of its own."""

    def devices(entropy: Entropy) -> Life:
        return partial(live, make(entropy))

    return devices


def once_devices(once: Once, history: list[int], with_rounds: bool = False) -> Devices:
    """Of bits and sets only the first two values: the others do not depend on which it is."""

    def live(randomiser: OnceRandomiser) -> Hashable:
        rounds = randomiser.rounds()
        answers = [randomiser.memoize(history[r]) for r in rounds]
        sent = tuple(a[0] if once.protocol == "GRR" else a[0] >> 6 for a in answers)
        return (rounds, sent) if with_rounds else sent

    return devices_of(partial(OnceRandomiser, once), live)


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1.0), (4, 2.0), (11, 1.0)])
def test_once(k: int, epsilon: float) -> None:
    """The value of every round differs: whichever is drawn, no more is disclosed."""
    once = Once.calibrate(k=k, epsilon=epsilon, rounds=3)
    seed = f"once-{k}-{epsilon}"
    zeros, ones = (once_devices(once, [v, v, v]) for v in (0, 1))
    check(zeros, ones, epsilon, seed)
    still = once_devices(once, [0, 0, 0], with_rounds=True)
    changing = once_devices(once, [1, 2 % k, 1], with_rounds=True)
    assert proven(still, changing, seed) <= epsilon


def test_two_rounds_disclose_twice_as_much() -> None:
    once = Once.calibrate(k=3, epsilon=1.0, rounds=3, each=2)
    one, other = (once_devices(once, [v, v, v]) for v in (0, 1))
    assert check(one, other, 2.0, "once-twice") > 1.0, "a control: two answers reveal more than one"


# --- two cells -----------------------------------------------------------------------------------


def hashed_devices(hashed: Hashed, values: list[int], forgetful: bool = False) -> Devices:
    """Values 0 and 1 are in cells 0 and 1; a forgetful device draws a memo for every report."""

    def live(randomiser: HashedRandomiser) -> Hashable:
        memos: dict[int, bytes] = {}
        sent = []
        for cell in map(randomiser.key, values):
            if cell not in memos or forgetful:
                memos[cell] = randomiser.memoize(cell)
            sent.append(randomiser.report(memos[cell]))
        return tuple(sent)

    return devices_of(partial(HashedRandomiser, hashed, bytes([0b01000000])), live)


HASHED = Hashed.calibrate(k=2, eps_inf=2.0, eps_1=0.6)
LOUD = Hashed.calibrate(k=2, eps_inf=1.0, eps_1=0.7)


@pytest.mark.parametrize(("hashed", "reports"), [(HASHED, 1), (LOUD, 3), (LOUD, 6)])
def test_reports_of_a_cell_disclose_eps_t(hashed: Hashed, reports: int) -> None:
    nominal = hashed.cell.epsilon_after(reports)
    one, other = (hashed_devices(hashed, [cell] * reports) for cell in (0, 1))
    check(one, other, nominal, f"hashed-{reports}")
    assert nominal < hashed.cell.eps_inf


def test_cells_that_change_at_the_same_moments() -> None:
    one, other = hashed_devices(LOUD, [0, 0, 1, 1]), hashed_devices(LOUD, [1, 1, 0, 0])
    spent = LOUD.spending([2, 2])
    check(one, other, spent.exact, "hashed-pattern")
    assert spent.exact < spent.charged == 2.0


def test_that_a_cell_changed_is_disclosed_beyond_the_ledger() -> None:
    """As documented for owners. The exact ratio is above the ledger's 2 x eps_inf."""
    never, changed = hashed_devices(LOUD, [0] * 8), hashed_devices(LOUD, [0] * 4 + [1] * 4)
    assert proven(never, changed, "hashed-change") > LOUD.lifetime_epsilon


def test_the_audit_detects_a_memo_drawn_every_round() -> None:
    one, other = (hashed_devices(LOUD, [cell] * 6, forgetful=True) for cell in (0, 1))
    assert proven(one, other, "hashed-forgetful") > LOUD.cell.eps_inf


# --- nested --------------------------------------------------------------------------------------


def nested_devices(nested: Nested, value: int, levels: slice) -> Devices:
    """The reports of some of the levels."""
    return devices_of(partial(NestedRandomiser, nested), lambda r: r.draw(value)[levels])


NESTED = Nested.calibrate("GRR", k=3, schedule=[0.6, 1.2, 2.0])
BITS = Nested.calibrate("OUE", k=2, schedule=[0.6, 1.2, 2.0])
SETS = Nested.calibrate("SS", k=5, schedule=[0.7, 1.4, 2.2])  # of 2, 1 and 1 values


@pytest.mark.parametrize("reports", [1, 2, 3])
@pytest.mark.parametrize("nested", [NESTED, BITS, SETS], ids=["GRR", "OUE", "SS"])
def test_nested(nested: Nested, reports: int) -> None:
    one, other = (nested_devices(nested, value, slice(reports)) for value in (0, 1))
    check(one, other, nested.epsilon_after(reports), f"nested-{nested.protocol}-{reports}", 0.6)


def test_a_late_report_alone_discloses_what_all_before_did() -> None:
    one, other = (nested_devices(NESTED, value, slice(2, 3)) for value in (0, 1))
    assert check(one, other, 2.0, "nested-last") > 0.6, "far more than the first report"


def test_the_audit_detects_levels_drawn_independently() -> None:
    """A control: each level from the value by itself is right alone, and too much together."""

    def apart(value: int) -> Devices:
        return devices_of(
            partial(NestedRandomiser, NESTED),
            lambda r: tuple(r.draw(value)[level] for level in range(3)),
        )

    assert proven(apart(0), apart(1), "nested-apart") > 2.0


# --- memoized -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "k", "eps_inf", "eps_1"),
    [("L-GRR", 2, 1.0, 0.7), ("L-OSUE", 2, 1.0, 0.7), ("L-SS", 4, 2.0, 0.5)],
)
def test_memoized(protocol: str, k: int, eps_inf: float, eps_1: float) -> None:
    calibration = calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1)
    assert calibration.size == {"L-GRR": 1, "L-OSUE": 0, "L-SS": 2}[protocol]

    def memoizing(value: int) -> Devices:
        def live(randomiser: Randomiser) -> Hashable:
            memo = randomiser.memoize(value)
            return tuple(randomiser.report(memo) for _ in range(2))

        return devices_of(partial(Randomiser, calibration), live)

    power = 0.6 if protocol == "L-SS" else 0.75  # more events
    check(memoizing(0), memoizing(1), calibration.epsilon_after(2), f"memo-{protocol}", power)
