"""R02, R04: the chances a device draws with are integers over 2^64 that never overspend."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import (
    Calibration,
    Manifest,
    PublishedThresholds,
    Randomiser,
    Rejected,
    as_drawn,
    calibrate,
    calibrate_once,
    decode_thresholds,
    digest8,
    largest_eps_1,
    limits,
    published_thresholds,
    thresholds,
    thresholds_fault,
)
from protocol_spec.probabilities import SETS
from protocol_spec.published import MARGIN, PROTOCOL_NUMBERS
from tests.support.campaigns import manifest_text
from tests.support.protocol import vectors
from tests.support.protocol.entropy import Tape, words
from tests.support.protocol.helpers import (
    MANIFESTS,
    VARIANTS,
    Budget,
    budgets,
    feasible,
    relative,
)
from tests.support.protocol.reference import Mechanism, Real, mp
from tests.support.protocol.specification import calculated, fence, rows

SCALE = 1 << 64
TOP = SCALE - 1
GRID_INF = (0.001, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 20.0)
GRID_RATIO = (0.01, 0.1, 0.3, 0.6, 0.9, 0.999)
GRID_K = (2, 3, 5, 37, 1000, 4096)


def mechanism(calibration: Calibration) -> Mechanism:
    """The mechanism that a device really runs, in exact fractions."""
    first, second = thresholds(calibration)
    p1, q1 = pair(*first, calibration, 1)
    p2, q2 = pair(*second, calibration, first[1])
    return Mechanism(calibration.unary, calibration.k, p1, q1, p2, q2, calibration.size)


def pair(one: int, two: int, c: Calibration, before: int) -> tuple[Fraction, Fraction]:
    """p and q of a step: of bits, or of sets that are kept with the first number's chance."""
    keep, k = Fraction(one, SCALE), c.k
    if c.unary:
        return keep, Fraction(two, SCALE)
    blind = (1 - keep) * Fraction(two, k)
    return keep + blind, keep * Fraction(two - before, k - before) + blind


def loss(p: Fraction, q: Fraction, sets: tuple[int, int] | None) -> Real:
    """ln of the exact worst ratio between two values; of sets of k and size, one that has the value
    against one that has it not."""
    ratio = p * (1 - q) / ((1 - p) * q)
    if sets is not None:
        ratio = p / (1 - p) * Fraction(sets[0] - sets[1], sets[1])
    return mp.log(mp.mpf(ratio.numerator) / ratio.denominator)


def losses(calibration: Calibration) -> tuple[Real, Real]:
    """(of the memo, of one report), from the integers."""
    m = mechanism(calibration)
    memo = loss(m.p1, m.q1, None if m.unary else (m.k, 1))
    return memo, loss(m.support(True), m.support(False), None if m.unary else (m.k, m.size))


def check_never_overspent(budget: Budget) -> None:
    """Both for who reads the epsilons as float64 and for who reads their decimal text."""
    memo, report = losses(budget.calibrate())
    for spent, declared in ((memo, budget.eps_inf), (report, budget.eps_1)):
        assert spent <= mp.mpf(declared), budget
        assert spent <= mp.mpf(repr(declared)), budget


def grid(variant: tuple[str, str]) -> list[Budget]:
    ks = GRID_K if variant[0] in ("L-GRR", "L-SS") else (8,)
    found = [
        feasible(variant, k, eps_inf, ratio * eps_inf)
        for eps_inf in GRID_INF
        for ratio in GRID_RATIO
        for k in ks
    ]
    return [budget for budget in found if budget is not None]


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_never_overspent_on_a_grid(variant: tuple[str, str]) -> None:
    for budget in grid(variant):
        check_never_overspent(budget)


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
@settings(max_examples=50)
@given(st.data())
def test_never_overspent(variant: tuple[str, str], data: st.DataObject) -> None:
    check_never_overspent(data.draw(budgets(variant)))


def _real(x: Fraction) -> Real:
    return mp.mpf(x.numerator) / x.denominator


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v[1] == "exact"], ids="-".join)
def test_budgets_in_use_lose_less_than_a_millionth_of_a_billionth(
    variant: tuple[str, str],
) -> None:
    """Up to eps_inf = 4 the next float64 is 4.4e-16 away and 2^-63 k adds no more than that."""
    for budget in grid(variant):
        if budget.eps_inf <= 4 and budget.eps_1 <= 0.9 * budget.eps_inf:
            memo, report = losses(budget.calibrate())
            assert budget.eps_inf - memo < 1e-15, budget
            assert budget.eps_1 - report < 1e-15, budget


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_the_collector_debiases_with_what_devices_draw(variant: tuple[str, str]) -> None:
    budget = Budget(*variant, 5, 2.0, 0.6)
    drawn, m = as_drawn(budget.calibrate()), mechanism(budget.calibrate())
    for name in ("p1", "q1", "p2", "q2"):
        assert relative(getattr(drawn, name), _real(getattr(m, name))) < 1e-15
    assert relative(drawn.gap, _real(m.gap())) < 1e-15
    assert (drawn.eps_inf, drawn.eps_1, drawn.protocol) == (2.0, 0.6, budget.protocol)
    assert drawn.epsilon_after(1) <= budget.eps_1
    assert math.isclose(drawn.variance(100, 0.2), budget.calibrate().variance(100, 0.2))


UNARY = calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6)
GENERALISED = calibrate("L-GRR", k=4, eps_inf=2.0, eps_1=0.6)
# threshold: the draws below it, and the draws not below it
EXTREMES = {
    0: ((), (0, 1, TOP)),
    1: ((0,), (1, TOP)),
    TOP: ((0, TOP - 1), (TOP,)),
    SCALE: ((0, TOP), ()),
}


def with_thresholds(calibration: Calibration, threshold: int, tape: Tape) -> Randomiser:
    randomiser = Randomiser(calibration, tape)
    second = 1 if calibration.size else threshold
    randomiser.thresholds = (threshold, second), (threshold, second)
    return randomiser


@pytest.mark.parametrize("threshold", EXTREMES)
def test_extreme_thresholds_of_bits(threshold: int) -> None:
    below, above = EXTREMES[threshold]
    for draw, bits in (*((d, 0xF0) for d in below), *((d, 0x00) for d in above)):
        tape = Tape(words(*(draw,) * 8))
        randomiser = with_thresholds(UNARY, threshold, tape)
        assert randomiser.memoize(1) == bytes([bits])
        assert randomiser.report(b"\x40") == bytes([bits])


@pytest.mark.parametrize("threshold", EXTREMES)
def test_extreme_thresholds_of_a_value(threshold: int) -> None:
    below, above = EXTREMES[threshold]
    for draw in below:
        assert with_thresholds(GENERALISED, threshold, Tape(words(draw))).memoize(2) == b"\x02"
    for draw in above:
        tape = Tape(words(draw) + b"\x00")
        assert with_thresholds(GENERALISED, threshold, tape).memoize(2) == b"\x00"


def test_extreme_budgets_have_extreme_thresholds() -> None:
    assert thresholds(calibrate("L-OSUE", k=4, eps_inf=100.0, eps_1=50.0))[0][1] == 1
    assert thresholds(calibrate("L-SUE", k=4, eps_inf=100.0, eps_1=50.0))[0][0] == TOP
    assert thresholds(calibrate("L-GRR", k=4, eps_inf=100.0, eps_1=99.0))[0] == (TOP, 1)
    assert thresholds(calibrate_once("OUE", k=4, epsilon=1.0))[1] == (SCALE, 0)
    limit = calibrate("L-SOUE", k=4, eps_inf=20.0, eps_1=10.69307908452972)
    assert thresholds(limit)[1][1] == 0


# --- Published thresholds: whoever made them, a device that checked them keeps its epsilons.


VECTORS = vectors.load("thresholds.json")
Step = tuple[int, int]


@pytest.mark.parametrize("entry", VECTORS["published"], ids=lambda entry: entry["manifest"])
def test_what_is_published_is_what_the_reference_calculates(entry: dict[str, Any]) -> None:
    assert published_thresholds(MANIFESTS[entry["manifest"]]).encode().hex() == entry["hex"]


def test_what_may_be_drawn_with_and_what_may_not() -> None:
    for entry in VECTORS["checked"]:
        published = decode_thresholds(bytes.fromhex(entry["hex"]))
        assert not isinstance(published, Rejected)
        fault = thresholds_fault(published, MANIFESTS[entry["manifest"]])
        assert (fault is None) == entry["accepted"], (entry["manifest"], entry["why"], fault)


def test_numbers_of_protocols_are_as_the_specification_says() -> None:
    assert rows("number", "protocol") == [[str(n), p] for n, p in enumerate(PROTOCOL_NUMBERS)]


# --- campaigns of every kind, down to the smallest epsilons ---------------------------------------

BUDGETS = (
    (3e-9, 1e-9),
    (0.0015, 0.001),
    (1e-3, 1e-5),
    (0.5, 0.25),
    (2.0, 0.6),
    (20.0, 19.9),
    (20.0, 0.001),
)
PROTOCOLS = ("L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "L-SS")


@cache
def campaign(protocol: str, k: int, eps_inf: float, eps_1: float) -> Manifest:
    values = [f"v{i}" for i in range(k - 1)]
    attributes = (
        f'[[attributes]]\nname = "a"\nquestion = "A?"\nvalues = {values!r}\n'
        f'protocol = "{protocol}"\n'
    )
    text = manifest_text(
        not_known=True, first=0, eps_inf=eps_inf, eps_1=eps_1, attributes=attributes
    )
    return Manifest.from_toml(text)


def possible() -> Iterator[tuple[str, int, float, float]]:
    """k makes a difference to sets alone."""
    kinds = (*((protocol, 3) for protocol in PROTOCOLS), ("L-GRR", 4096), ("L-SS", 60))
    for (eps_inf, eps_1), (protocol, k) in product(BUDGETS, kinds):
        yield protocol, k, eps_inf, min(eps_1, largest_eps_1(protocol, eps_inf=eps_inf))


CASES = sorted(set(possible()))


def told(unary: bool, k: int, steps: list[Step]) -> list[Real]:
    """What is told after each step, from the definition of the two responses."""
    losses = []
    same, other, before = mp.mpf(1), mp.mpf(0), 1
    for first, second in steps:
        p, q = mp.mpf(first) / SCALE, mp.mpf(second) / SCALE
        if not unary:
            blind = (1 - p) * second / k
            p, q = p + blind, p * (second - before) / (k - before) + blind
            before = second
        same, other = (x * p + (1 - x) * q for x in (same, other))
        if unary:
            losses.append(abs(mp.log(same * (1 - other) / (other * (1 - same)))))
        else:
            losses.append(mp.log(same / second / ((1 - same) / (k - second))))
    return losses


def steps_in(published: PublishedThresholds) -> list[Step]:
    numbers = struct.unpack(f">{len(published.steps) // 8}Q", published.steps)
    return list(zip(numbers[::2], numbers[1::2]))


def with_steps(published: PublishedThresholds, steps: list[Step]) -> PublishedThresholds:
    return replace(published, steps=b"".join(struct.pack(">QQ", *step) for step in steps))


def slack(epsilon: float) -> Real:
    relative, absolute = MARGIN
    return mp.mpf(epsilon) * relative + absolute


@pytest.mark.parametrize(("protocol", "k", "eps_inf", "eps_1"), CASES)
def test_published_thresholds_pass_with_room_for_other_logarithms(
    protocol: str, k: int, eps_inf: float, eps_1: float
) -> None:
    manifest = campaign(protocol, k, eps_inf, eps_1)
    published = published_thresholds(manifest)
    assert thresholds_fault(published, manifest) is None
    losses = told(protocol not in SETS, k, steps_in(published))
    for loss, epsilon in zip(losses, (eps_inf, eps_1)):
        assert loss <= epsilon - 2 * slack(epsilon)  # what M113 says, exactly
        assert loss >= epsilon * (1 - 2.0**-20) - mp.mpf(2) ** -40  # and no more noise than that


def least_noise(accepts: Callable[[int], bool], sound: int) -> int:
    """The largest p that is accepted, given one that is."""
    low, high = sound, SCALE - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle - 1)
    return low


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("protocol", "k", "eps_inf", "eps_1"), CASES)
def test_the_least_noise_that_passes_keeps_the_epsilon(
    protocol: str, k: int, eps_inf: float, eps_1: float, place: int
) -> None:
    """A hostile operator's best: p as large as the check allows, in one step or the other."""
    manifest = campaign(protocol, k, eps_inf, eps_1)
    published = published_thresholds(manifest)
    sound = steps_in(published)

    def other(p: int) -> list[Step]:
        changed = list(sound)
        changed[place] = (p, sound[place][1])
        return changed

    def accepts(p: int) -> bool:
        return thresholds_fault(with_steps(published, other(p)), manifest) is None

    worst = other(least_noise(accepts, sound[place][0]))
    losses = told(protocol not in SETS, k, worst)
    assert losses[0] <= mp.mpf(eps_inf)
    assert losses[1] <= mp.mpf(eps_1)
    # Float64 is wrong by less than half of the margin, so nothing depends on the library's digits.
    gaps = [
        abs(loss - (epsilon - slack(epsilon))) / slack(epsilon)
        for loss, epsilon in zip(losses, (eps_inf, eps_1))
    ]
    assert min(gaps) < 0.5 or worst[place][0] == SCALE - 1


LEVELS = [0.01 + 0.6 * i for i in range(32)]


@pytest.mark.parametrize("protocol", ["GRR", "OUE", "SS"])
@pytest.mark.parametrize("k", [3, 400])
def test_thirty_two_levels_stay_within_theirs(protocol: str, k: int) -> None:
    manifest = _nested_campaign(protocol, k)
    published = published_thresholds(manifest)
    assert thresholds_fault(published, manifest) is None
    sound = steps_in(published)
    for place in (0, 15, 31):

        def other(p: int, at: int = place) -> list[Step]:
            return [*sound[:at], (p, sound[at][1]), *sound[at + 1 :]]

        def accepts(p: int, changed: Callable[[int], list[Step]] = other) -> bool:
            return thresholds_fault(with_steps(published, changed(p)), manifest) is None

        worst = other(least_noise(accepts, sound[place][0]))
        losses = told(protocol == "OUE", k, worst[::-1])[::-1]
        assert all(loss <= mp.mpf(level) for loss, level in zip(losses, LEVELS, strict=True))


def _nested_campaign(protocol: str, k: int) -> Manifest:
    low, high = LEVELS[0], LEVELS[-1]
    text = manifest_text(
        not_known=True, first=0, reporting="nested", attributes="", eps_inf=high, eps_1=low
    )
    values = [f"v{i}" for i in range(k - 1)]
    return Manifest.from_toml(
        f'{text}[[attributes]]\nname = "a"\nquestion = "A?"\nvalues = {values!r}\n'
        f'protocol = "{protocol}"\nlevels = {LEVELS!r}\n'
    )


SHOWN = [case for case in CASES if case[3] >= limits.MIN_PUBLISHED_EPS_1]


@pytest.mark.parametrize(("protocol", "k", "eps_inf", "eps_1"), SHOWN)
def test_no_estimate_shows_which_thresholds_were_used(
    protocol: str, k: int, eps_inf: float, eps_1: float
) -> None:
    """Less than a thousandth of the standard error, with a million million reports."""
    manifest = campaign(protocol, k, eps_inf, eps_1)
    [channel] = manifest.mechanisms[0].channels
    assert isinstance(channel, Calibration)
    ps, qs = _support(channel.exact)
    drawn = steps_in(published_thresholds(manifest))
    noise = manifest.calibrations[0]
    four = [_real(x) for step in drawn for x in pair(*step, noise, 1)]
    really, never = (x * four[2] + (1 - x) * four[3] for x in (four[0], four[1]))
    error = mp.sqrt(qs * (1 - qs) / mp.mpf(10) ** 12) / (ps - qs)
    for f in (0, 1):
        expected = (f * really + (1 - f) * never - qs) / (ps - qs)
        assert abs(expected - f) < error / 1000


def _support(exact: tuple[Decimal, ...]) -> tuple[Real, Real]:
    p1, q1, p2, q2 = (mp.mpf(str(chance)) for chance in exact)
    return p1 * p2 + (1 - p1) * q2, q1 * p2 + (1 - q1) * q2


def test_the_formulas_of_the_specification_are_those_of_the_check() -> None:
    """What is told after RR1 and RR2, from the text alone."""
    manifest = MANIFESTS["fleet"]
    steps = steps_in(published_thresholds(manifest))
    for place, attribute in enumerate(manifest.attributes):
        unary = manifest.calibrations[place].unary
        name = "unary" if unary else "set"
        state = {"s": Decimal(1), "r": Decimal(0), "t": Decimal(0), "u": Decimal(1)}
        wanted = told(unary, attribute.k, steps[2 * place : 2 * place + 2])
        if not unary:
            state = {"s": Decimal(1), "u": Decimal(0)}
        lines = [line for line in fence("formulas told").splitlines() if line[:1] == name[:1]]
        for (p, q), loss in zip(steps[2 * place : 2 * place + 2], wanted):
            given = {"p": Decimal(p) / SCALE, "q": Decimal(q) / SCALE, "k": Decimal(attribute.k)}
            given["d"] = Decimal(q)
            found = calculated(lines, {**state, **given})
            assert abs(float(found[f"{name}_told"]) - float(loss)) < 1e-12
            state = {each: found.get(f"{name}_{each}", state[each]) for each in state}


def test_a_manifest_of_another_campaign_is_named() -> None:
    published = published_thresholds(MANIFESTS["plain"])
    assert published.digest8 == digest8(MANIFESTS["plain"])
    assert "another manifest" in (thresholds_fault(published, MANIFESTS["tour"]) or "")
