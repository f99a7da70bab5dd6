"""Chances, privacy loss over time, variances, thresholds, feasibility and ALLOMFREE's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from protocol_spec import (
    Calibration,
    calibrate,
    calibrate_once,
    choose,
    largest_eps_1,
    thresholds,
)
from vector_checks.entries import Compared, Entry, same

ANY_K: Final = 8  # for unary protocols, whose chances do not depend on k
CHANCES: Final = ("p1", "q1", "p2", "q2", "ps", "qs")


def calibrated(entry: Entry) -> Calibration:
    """The calibration that an entry is about, in the words of either format."""
    protocol, k = entry["protocol"], int(entry.get("k", ANY_K))
    method = entry.get("method", "paper" if protocol.endswith("-paper") else "exact")
    names = ("einf", "e1") if "einf" in entry else ("eps_inf", "eps_1")
    eps_inf, eps_1 = (entry.number(name) for name in names)
    return calibrate(
        protocol.removesuffix("-paper"), k=k, eps_inf=eps_inf, eps_1=eps_1, method=method
    )


def protocols(entry: Entry) -> Iterator[Compared]:
    c = calibrated(entry)
    yield from _chances(entry, c, CHANCES)
    yield from _losses(entry, c)
    yield from _variances(entry, c)


def _chances(entry: Entry, c: Calibration, names: tuple[str, ...]) -> Iterator[Compared]:
    for name in names:
        yield Compared(name, getattr(c, name), entry.number(name))


def _losses(entry: Entry, c: Calibration) -> Iterator[Compared]:
    ratio = float((c.exact.p2 / c.exact.q2).ln())
    yield Compared("ln p2/q2", ratio, entry.number("eps2_ln_p2_over_q2"))
    yield Compared("eps_1", c.single_report_epsilon, entry.number("eps1_true"))
    for t, wanted in entry["eps_t"].items():
        yield Compared(f"eps_{t}", c.epsilon_after(int(t)), wanted)


def _variances(entry: Entry, c: Calibration) -> Iterator[Compared]:
    """Names say at which frequency: f025 is 0.25, f0 is 0."""
    yield Compared("Var*", c.variance(1), entry.number("var_star_n1"))
    total = c.device_variance(True) + (c.k - 1) * c.device_variance(False)
    yield Compared("total MSE", total, entry.number("total_mse_n1"))
    for name, found in entry.matching(r"var_fixed_f(\d+)_n1"):
        yield Compared(name, c.pooled_variance(1, 1, _frequency(found[1])), entry.number(name))
    for name, found in entry.matching(r"var_super_f(\d+)_n1"):
        yield Compared(name, c.variance(1, _frequency(found[1])), entry.number(name))
    for name, found in entry.matching(r"var_pooled_f(\d+)_n1"):
        for t, wanted in entry[name].items():
            got = c.pooled_variance(1, int(t), _frequency(found[1]))
            yield Compared(f"{name}[{t}]", got, wanted)


def _frequency(digits: str) -> float:
    return float(f"{digits[0]}.{digits[1:] or '0'}")


def feasibility(entry: Entry) -> Iterator[Compared]:
    eps_inf = entry.number("einf")
    for name, protocol in (("loue_max_e1", "L-OUE"), ("lsoue_max_e1", "L-SOUE")):
        yield Compared(name, largest_eps_1(protocol, eps_inf=eps_inf), entry.number(name))


def nearest_thresholds(entry: Entry) -> Iterator[Compared]:
    """Chances rounded to the nearest at the epsilons; ours are rounded to more noise from below.

    They are compared as chances, in units of 1: a chance of nearly 0 has few digits at 2^-64.
    """
    for name, ours, theirs in zip(CHANCES, thresholds(calibrated(entry)), entry["thresholds_2_64"]):
        yield Compared(name, 1.0 + (ours - int(theirs)) / 2.0**64, 1.0)


def longitudinal(entry: Entry) -> Iterator[Compared]:
    c = calibrated(entry)
    yield from _chances(entry, c, CHANCES)
    yield from _at_frequencies(entry, c)
    for t, wanted in entry["epsilon_after"].items():
        yield Compared(f"epsilon_after({t})", c.epsilon_after(int(t)), float(wanted))
    for t, wanted in entry["pooled_variance"].items():
        yield Compared(f"pooled_variance({t})", c.pooled_variance(1, int(t), 0.25), float(wanted))
    yield same("thresholds", [str(t) for t in thresholds(c)], entry["thresholds"])


def one_time(entry: Entry) -> Iterator[Compared]:
    c = calibrate_once(entry["protocol"], k=entry["k"], epsilon=entry.number("epsilon"))
    yield from _chances(entry, c, ("p1", "q1"))
    yield from _at_frequencies(entry, c)


def _at_frequencies(entry: Entry, c: Calibration) -> Iterator[Compared]:
    for f, wanted in zip((0.0, 0.25), entry["variance"]):
        yield Compared(f"variance at {f}", c.variance(1, f), float(wanted))


def largest(entry: Entry) -> Iterator[Compared]:
    eps_inf = entry.number("eps_inf")
    got = largest_eps_1(entry["protocol"], eps_inf=eps_inf)
    yield Compared("largest_eps_1", got, entry.number("largest_eps_1"))


def choice(entry: Entry) -> Iterator[Compared]:
    budget = {name: entry[name] for name in ("k", "eps_inf", "eps_1", "method")}
    yield same("chosen", choose(**budget).chosen.protocol, entry["chosen"])


KINDS: Final[dict[str, Callable[[Entry], Iterator[Compared]]]] = {
    "protocols": protocols,
    "feasibility": feasibility,
    "thresholds": nearest_thresholds,
    "longitudinal": longitudinal,
    "one_time": one_time,
    "largest_eps_1": largest,
    "choice": choice,
}
