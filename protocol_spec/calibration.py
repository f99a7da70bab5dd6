"""How much noise each protocol needs for a given eps_inf and eps_1, exactly.

Claim: with the returned p1, q1, p2, q2 one report is eps_1-LDP and any number of reports from one
memo is eps_inf-LDP, both attained (for `method="paper"`, L-GRR with k > 2 stays below eps_1).

The probabilities themselves are those of `protocol_spec.probabilities`. For sets and unary
encodings alike, RR1 and then RR2 together have

    ps = p1 p2 + (1 - p1) q2        qs = q1 p2 + (1 - q1) q2        ps - qs = (p1-q1)(p2-q2).

All arithmetic is in 80-digit decimals and rounded once, at the end.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal, SupportsIndex, get_args

from protocol_spec.encoding import BodyFormat
from protocol_spec.errors import InfeasibleBudget, ParameterError
from protocol_spec.limits import MAX_DOMAIN, MAX_EPSILON, MIN_EPSILON
from protocol_spec.probabilities import (
    LARGEST_EPS_1,
    LONGITUDINAL,
    METHODS,
    ONE_TIME,
    SETS,
    Method,
    Probabilities,
    best_size,
    exact_probabilities,
    precise,
)

ADAPTIVE: Final = "ALLOMFREE"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The four probabilities of one protocol, and the privacy over time and error they give.

    `protocol` is the one that runs: for ALLOMFREE it is the one chosen. `eps_inf` and `eps_1` are
    the nominal ones asked for; `single_report_epsilon` is what one report really spends. `size` is
    how many values every report supports; 0 where each bit is drawn by itself.
    """

    protocol: str
    k: int
    p1: float
    q1: float
    p2: float
    q2: float
    eps_inf: float
    eps_1: float
    method: Method = "exact"
    size: int = field(kw_only=True)
    exact: Probabilities = field(repr=False, compare=False, kw_only=True)

    @property
    def unary(self) -> bool:
        """Whether values are supported independently of each other, given the true one."""
        return self.size == 0

    @property
    def memo_size(self) -> int:
        """How many values every memo supports: one, unless it is the report itself."""
        return min(self.size, 1) if self.protocol in LONGITUDINAL else self.size

    @property
    def formats(self) -> tuple[BodyFormat, BodyFormat]:
        """How a memo and a report are written."""
        bits = "GRR" not in self.protocol
        memo, report = (BodyFormat(bits, self.k, size) for size in (self.memo_size, self.size))
        return memo, report

    @property
    @precise
    def ps(self) -> float:
        """Probability that one report supports the true value."""
        return float(_support(self.exact.p1, self.exact))

    @property
    @precise
    def qs(self) -> float:
        """Probability that one report supports some other given value."""
        return float(_support(self.exact.q1, self.exact))

    @property
    @precise
    def gap(self) -> float:
        """ps - qs, without the digits that subtracting the two floats would lose."""
        return float((self.exact.p1 - self.exact.q1) * (self.exact.p2 - self.exact.q2))

    @property
    def single_report_epsilon(self) -> float:
        """What one report really spends, which `method="paper"` overstates."""
        return self.epsilon_after(1)

    def epsilon_after(self, reports: int) -> float:
        """Exact privacy loss of `reports` fresh reports drawn from one memo (never t x eps_1)."""
        if reports < 0:
            raise ParameterError("reports", reports, "a number of reports is 0 or more")
        return _epsilon_after(self.exact, self.k, self.memo_size, self.size, reports)

    @precise
    def variance(self, n: int, f: float = 0.0) -> float:
        """Variance of a frequency estimated from one round of n i.i.d. devices (superpopulation).

        gamma (1 - gamma) / (n (ps - qs)^2) with gamma = f ps + (1 - f) qs. The paper's own
        coefficient of f is wrong unless ps + qs = 1; at f = 0 both agree.
        """
        _check_sample(n, f)
        return float(_variance(self.exact, Decimal(f)) / n)

    @precise
    def pooled_variance(self, n: int, rounds: int, f: float = 0.0) -> float:
        """Variance about the n devices' own frequency when each sent `rounds` reports of one memo.

        Between-memo noise does not average out: as `rounds` grows this falls to a floor, the
        variance of RR1 alone. Sampling error f (1 - f) / n is not included.
        """
        _check_sample(n, f, rounds)
        noise = Decimal(f) * _device_noise(self.exact, True, rounds)
        noise += (1 - Decimal(f)) * _device_noise(self.exact, False, rounds)
        return float(noise / n)

    @precise
    def device_variance(self, holds: bool, rounds: int = 1) -> float:
        """Variance of one device's debiased mean of `rounds` reports, if it holds the value."""
        _check_sample(rounds=rounds)
        return float(_device_noise(self.exact, holds, rounds))

    @precise
    def total_variance(self, rounds: int = 1) -> Decimal:
        """The same, summed over all values."""
        held, other = (_device_noise(self.exact, holds, rounds) for holds in (True, False))
        return held + (self.k - 1) * other


@lru_cache(maxsize=1024)  # a logarithm of 80 digits, asked for by every command that shows it
@precise
def _epsilon_after(exact: Probabilities, k: int, memo: int, size: int, reports: int) -> float:
    """Of that many reports of one memo, whose sets have `memo` and `size` values, or no size."""
    if reports == 0:
        return 0.0
    if size:
        return float(_epsilon_of_sets(exact, k, memo, size, reports).ln())
    p1, q1, p2, q2 = exact
    fade = (q2 / p2) ** reports  # (q2/p2)^t rather than (p2/q2)^t: bounded, and q2 may be 0
    absent = ((1 - p2) / (1 - q2)) ** reports
    all_ones = (p1 + (1 - p1) * fade) / (q1 + (1 - q1) * fade)
    all_zeros = (q1 * absent + 1 - q1) / (p1 * absent + 1 - p1)
    return float((all_ones * all_zeros).ln())


def _epsilon_of_sets(exact: Probabilities, k: int, memo: int, size: int, t: int) -> Decimal:
    """The largest ratio of probabilities of t reports, between two values v and w.

    A memo is b = 1/fade times likelier for every report that has it, and the value itself a times
    likelier as a memo than another: if value u is in n_u of the reports, the ratio is

        (a b^n_v + b^n_w + S) / (b^n_v + a b^n_w + S),   S = sum of b^n_u over the k-2 others,

    and the n sum to t size. It is largest if v is in all reports. A convex S is least when the
    rest is spread evenly over the others, which sets can do. That leaves n_w, in which the inverse
    of the ratio's excess is a convex function over a positive concave one: it falls, then rises.
    """
    p1, _, p2, _ = exact
    a = p1 / (1 - p1) * (k - memo) / memo
    if p2 == 1:  # every report is the memo
        return a
    fade = (1 - p2) / p2 * size / (k - size)

    def inverse(w: int) -> Decimal:
        each, more = divmod(t * (size - 1) - w, max(k - 2, 1))
        others = (k - 2 - more) * fade ** (t - each) + (more and more * fade ** (t - each - 1))
        return (1 + a * fade ** (t - w) + others) / (1 - fade ** (t - w))

    low, high = 0, min(t - 1, t * (size - 1))
    while low < high:
        middle = (low + high) // 2
        falls = inverse(middle + 1) < inverse(middle)
        low, high = (middle + 1, high) if falls else (low, middle)
    return 1 + (a - 1) / inverse(low)


@precise
def calibrate(
    protocol: str, *, k: int, eps_inf: float, eps_1: float, method: Method = "exact"
) -> Calibration:
    """Calibrate one of `LONGITUDINAL`, or the paper's "ALLOMFREE": L-GRR, or L-OSUE where that
    has less variance in one round if nobody holds the value (compared in decimals, for ties).

    `method="paper"` uses the paper's L-GRR, which adds more noise than eps_1 asks for when k > 2;
    the other protocols are the same under both methods. Raises `ParameterError`.
    """
    if protocol == ADAPTIVE:
        grr, osue = (
            calibrate(name, k=k, eps_inf=eps_inf, eps_1=eps_1, method=method)
            for name in ("L-GRR", "L-OSUE")
        )
        rare = Decimal(0)
        return grr if _variance(grr.exact, rare) <= _variance(osue.exact, rare) else osue
    if protocol not in LONGITUDINAL:
        remedy = f"choose one of {', '.join((*LONGITUDINAL, ADAPTIVE))}"
        raise ParameterError("protocol", protocol, remedy)
    if method not in METHODS:
        raise ParameterError("method", method, "choose 'exact' or 'paper'")
    k = _check_domain(k)
    eps_inf, eps_1 = _check_epsilon("eps_inf", eps_inf), _check_epsilon("eps_1", eps_1)
    if eps_1 >= eps_inf:
        remedy = f"must be smaller than eps_inf = {eps_inf!r}: one report discloses less than all"
        raise ParameterError("eps_1", eps_1, remedy)
    return _calibrate(protocol, k, eps_inf, eps_1, method)


ChooseFor = Literal["round", "pooled"]
READINGS: Final = get_args(ChooseFor)


def candidates(*, k: int, eps_inf: float, eps_1: float) -> tuple[Calibration, Calibration]:
    """What `auto` can become where devices keep memos: L-SS, which is L-GRR if its best sets have
    one value, and L-OSUE, whose memos say more if k is large."""
    sets = calibrate("L-SS", k=k, eps_inf=eps_inf, eps_1=eps_1)
    if sets.size == 1:
        sets = calibrate("L-GRR", k=k, eps_inf=eps_inf, eps_1=eps_1)
    return sets, calibrate("L-OSUE", k=k, eps_inf=eps_inf, eps_1=eps_1)


def choose(
    *, k: int, eps_inf: float, eps_1: float, rounds: int = 1, method: Method = "exact"
) -> Calibration:
    """The candidate with the least variance over all values of `rounds` reports of one memo. With
    the paper's calibration, the paper's choice."""
    if method != "exact":
        return calibrate(ADAPTIVE, k=k, eps_inf=eps_inf, eps_1=eps_1, method=method)
    _check_sample(rounds=rounds)
    sets, osue = candidates(k=k, eps_inf=eps_inf, eps_1=eps_1)
    return sets if sets.total_variance(rounds) <= osue.total_variance(rounds) else osue


@precise
def calibrate_once(
    protocol: str, *, k: int, epsilon: float, above: Calibration | None = None
) -> Calibration:
    """The one-time GRR, OUE, SUE or SS: the same thing with an RR2 that changes nothing.

    SS has the best size; of the sets to be drawn from those `above`, the best that is possible.
    """
    if protocol not in ONE_TIME:
        raise ParameterError("protocol", protocol, f"choose one of {', '.join(ONE_TIME)}")
    k = _check_domain(k)
    epsilon = _check_epsilon("epsilon", epsilon)
    size = int(protocol in SETS)
    if protocol == "SS":
        size = best_size(k, epsilon, *((above.size, above.eps_inf) if above else ()))
    exact = exact_probabilities(protocol, k, Decimal(epsilon), Decimal(epsilon), size=size)
    return _build(protocol, k, epsilon, epsilon, "exact", exact, size)


@precise
def largest_eps_1(protocol: str, *, eps_inf: float) -> float:
    """The feasibility limit: L-OUE and L-SOUE stop short of eps_inf, because p2 = 1/2 is fixed."""
    if protocol not in LONGITUDINAL:
        raise ParameterError("protocol", protocol, f"choose one of {', '.join(LONGITUDINAL)}")
    eps_inf = _check_epsilon("eps_inf", eps_inf)
    limit = LARGEST_EPS_1.get(protocol)
    return float(limit(Decimal(eps_inf))) if limit else math.nextafter(eps_inf, 0.0)


def with_probabilities(nominal: Calibration, exact: Probabilities) -> Calibration:
    """The same protocol and budget with other probabilities, such as those really drawn with."""
    known = nominal.protocol, nominal.k, nominal.eps_inf, nominal.eps_1, nominal.method
    return _build(*known, exact, nominal.size)


# --- assembling and checking ------------------------------------------------------------------


@lru_cache(maxsize=1024)
@precise
def _calibrate(protocol: str, k: int, eps_inf: float, eps_1: float, method: Method) -> Calibration:
    if protocol in LARGEST_EPS_1:
        largest = float(LARGEST_EPS_1[protocol](Decimal(eps_inf)))
        if eps_1 > largest:
            raise InfeasibleBudget(protocol, eps_inf, eps_1, largest)
    size = int(protocol in SETS)
    if protocol == "L-SS":
        size = best_size(k, eps_1, 1, eps_inf)
    exact = exact_probabilities(protocol, k, Decimal(eps_inf), Decimal(eps_1), method, size)
    return _build(protocol, k, eps_inf, eps_1, method, exact, size)


def _build(
    protocol: str,
    k: int,
    eps_inf: float,
    eps_1: float,
    method: Method,
    exact: Probabilities,
    size: int,
) -> Calibration:
    p1, q1, p2, q2 = map(float, exact)
    return Calibration(protocol, k, p1, q1, p2, q2, eps_inf, eps_1, method, size=size, exact=exact)


def _support(kept: Decimal, exact: Probabilities) -> Decimal:
    return kept * exact.p2 + (1 - kept) * exact.q2


def _variance(exact: Probabilities, f: Decimal) -> Decimal:
    """Of one device drawn at random, in one round."""
    ps, qs = _support(exact.p1, exact), _support(exact.q1, exact)
    gamma = f * (ps - qs) + qs
    return gamma * (1 - gamma) / (ps - qs) ** 2


def _device_noise(exact: Probabilities, holds: bool, rounds: int) -> Decimal:
    """Variance of one device's mean of its reports: from RR1, and from RR2 in each round."""
    p1, q1, p2, q2 = exact
    kept = p1 if holds else q1
    between = kept * (1 - kept) / (p1 - q1) ** 2
    within = kept * p2 * (1 - p2) + (1 - kept) * q2 * (1 - q2)
    return between + within / ((p1 - q1) * (p2 - q2)) ** 2 / rounds


def _check_epsilon(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterError(field, value, "must be a number")
    if not MIN_EPSILON <= value <= MAX_EPSILON:
        raise ParameterError(field, value, f"must lie between {MIN_EPSILON:g} and {MAX_EPSILON:g}")
    return float(value)


def _check_domain(k: SupportsIndex) -> int:
    whole = 0 if isinstance(k, bool) or not hasattr(k, "__index__") else operator.index(k)
    if not 2 <= whole <= MAX_DOMAIN:
        raise ParameterError("k", k, f"must be a whole number from 2 to {MAX_DOMAIN}")
    return whole


def _check_sample(n: int = 1, f: float = 0.0, rounds: int = 1) -> None:
    if n < 1:
        raise ParameterError("n", n, "a number of devices is 1 or more")
    if not 0.0 <= f <= 1.0:
        raise ParameterError("f", f, "a frequency lies between 0 and 1")
    if rounds < 1:
        raise ParameterError("rounds", rounds, "a number of rounds is 1 or more")
