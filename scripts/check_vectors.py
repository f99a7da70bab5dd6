"""Compare the code with files of reference values, entry by entry.

A file is a JSON object. Each list in it holds entries of one kind, named by its key; texts next to
them are remarks. Exits with 1 where a number differs by more than 1e-12, relative to the reference
(absolute where that is 0), where an entry cannot be read, and for an unknown kind or field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np

from protocol_spec import (
    Calibration,
    calibrate,
    calibrate_once,
    choose,
    largest_eps_1,
    thresholds,
)
from protocol_spec.estimation import (
    Contrast,
    Estimate,
    cdf,
    contrast,
    critical_value,
    difference,
    estimate_pooled,
    mean,
    midpoints,
    project_to_simplex,
    score_interval,
    skew_corrected_interval,
)
from protocol_spec.mechanisms import Hashed, Nested, Once, change_log_ratio


class Compared(NamedTuple):
    """A number of the code and the reference's; `difference` is relative, or absolute at 0."""

    name: str
    got: float
    wanted: float

    @property
    def difference(self) -> float:
        error = abs(self.got - self.wanted)
        if math.isnan(error):
            return float("inf")
        return error / abs(self.wanted) if self.wanted else error


def same(name: str, got: object, wanted: object) -> Compared:
    """For what is equal or not: a word, or an integer to its last digit."""
    return Compared(name, 0.0 if got == wanted else float("inf"), 0.0)


class Entry:
    """The fields of a JSON object, and which of them have been read."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        if not isinstance(fields, Mapping):
            raise TypeError("an entry is an object with named fields")
        self._fields = fields
        self._seen: set[str] = set()
        self._inner: list[Entry] = []

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields:
            raise ValueError(f"the field {name!r} is missing")
        self._seen.add(name)
        return self._fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def number(self, name: str) -> float:
        """A number, or its digits as text."""
        return float(self[name])

    def get(self, name: str, default: Any) -> Any:
        return self[name] if name in self._fields else default

    def inner(self, name: str) -> Entry:
        """A field that is an object itself."""
        return self._watched(Entry(self[name]))

    def each(self, name: str) -> list[Entry]:
        """A field that is a list of objects."""
        return [self._watched(Entry(fields)) for fields in self[name]]

    def _watched(self, entry: Entry) -> Entry:
        self._inner.append(entry)
        return entry

    def matching(self, pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Fields whose whole name fits a pattern."""
        for name in self._fields:
            match = re.fullmatch(pattern, name)
            if match:
                yield name, match

    def unseen(self) -> set[str]:
        """Fields that have not been read; texts are remarks."""
        own = {
            name
            for name, value in self._fields.items()
            if name not in self._seen and not isinstance(value, str)
        }
        return own.union(*(entry.unseen() for entry in self._inner))


# --- Probabilities, privacy loss over time, variances, thresholds, feasibility and the choice.


ANY_K: Final = 8  # for unary protocols, whose probabilities do not depend on k
PROBABILITIES: Final = ("p1", "q1", "p2", "q2", "ps", "qs")


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
    """Names of variances say at which frequency: f025 is 0.25, f0 is 0."""
    c = calibrated(entry)
    yield from _probabilities(entry, c, PROBABILITIES)
    ratio = float((c.exact.p2 / c.exact.q2).ln())
    yield Compared("ln p2/q2", ratio, entry.number("eps2_ln_p2_over_q2"))
    yield Compared("eps_1", c.single_report_epsilon, entry.number("eps1_true"))
    for t, wanted in entry["eps_t"].items():
        yield Compared(f"eps_{t}", c.epsilon_after(int(t)), wanted)
    yield Compared("Var*", c.variance(1), entry.number("var_star_n1"))
    total = c.device_variance(True) + (c.k - 1) * c.device_variance(False)
    yield Compared("total MSE", total, entry.number("total_mse_n1"))
    for name, found in entry.matching(r"var_(fixed|super|pooled)_f(\d)(\d*)_n1"):
        kind, f = found[1], float(f"{found[2]}.{found[3] or '0'}")
        rounds = entry[name].items() if kind == "pooled" else [("1", entry[name])]
        for t, wanted in rounds:
            got = c.variance(1, f) if kind == "super" else c.pooled_variance(1, int(t), f)
            yield Compared(f"{name}[{t}]", got, wanted)


def _probabilities(entry: Entry, c: Calibration, names: tuple[str, ...]) -> Iterator[Compared]:
    for name in names:
        yield Compared(name, getattr(c, name), entry.number(name))


def feasibility(entry: Entry) -> Iterator[Compared]:
    eps_inf = entry.number("einf")
    for name, protocol in (("loue_max_e1", "L-OUE"), ("lsoue_max_e1", "L-SOUE")):
        yield Compared(name, largest_eps_1(protocol, eps_inf=eps_inf), entry.number(name))


def nearest_thresholds(entry: Entry) -> Iterator[Compared]:
    """The reference rounds to the nearest at the epsilons, the code to more noise below them.

    They are compared as probabilities, in units of 1: one of nearly 0 has few digits at 2^-64.
    """
    for name, ours, theirs in zip(
        PROBABILITIES, thresholds(calibrated(entry)), entry["thresholds_2_64"]
    ):
        yield Compared(name, 1.0 + (ours - int(theirs)) / 2.0**64, 1.0)


def longitudinal(entry: Entry) -> Iterator[Compared]:
    c = calibrated(entry)
    yield from _probabilities(entry, c, PROBABILITIES)
    yield from _at_frequencies(entry, c)
    for t, wanted in entry["epsilon_after"].items():
        yield Compared(f"epsilon_after({t})", c.epsilon_after(int(t)), float(wanted))
    for t, wanted in entry["pooled_variance"].items():
        yield Compared(f"pooled_variance({t})", c.pooled_variance(1, int(t), 0.25), float(wanted))
    yield same("thresholds", [str(t) for t in thresholds(c)], entry["thresholds"])


def one_time(entry: Entry) -> Iterator[Compared]:
    c = calibrate_once(entry["protocol"], k=entry["k"], epsilon=entry.number("epsilon"))
    yield from _probabilities(entry, c, ("p1", "q1"))
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


# --- Intervals, projections, differences, means, and distribution functions.


CONFIDENCE: Final = 0.95


def uncorrected_interval(entry: Entry) -> Iterator[Compared]:
    c, rounds, n = calibrated(entry), int(entry["T"]), entry.number("n")
    v0, v1 = (c.device_variance(holds, rounds) / n for holds in (False, True))
    raw = entry.number("fhat")
    low, high = score_interval([raw], v0, v1, z=entry.number("z"))
    yield Compared("V0", v0, entry.number("V0"))
    yield Compared("V1", v1, entry.number("V1"))
    yield Compared("centre", min(max(raw, 0.0), 1.0), entry.number("centre_used"))
    yield Compared("low", float(low[0]), entry.number("lo"))
    yield Compared("high", float(high[0]), entry.number("hi"))


def simplex_projection(entry: Entry) -> Iterator[Compared]:
    got = project_to_simplex(entry["inp"])
    for i, (ours, theirs) in enumerate(zip(got, entry["out"], strict=True)):
        yield Compared(f"value {i}", float(ours), theirs)


def _pooled(entry: Entry, fleet: int | None = None) -> Estimate:
    """With no counts yet: errors depend on who reported how often, not on what."""
    c = calibrated(entry)
    counts, weights = np.zeros(c.k, dtype=np.int64), entry.get("weights", "reports")
    rows = counts if weights == "reports" else np.zeros((len(entry["reports"]), c.k), np.int64)
    return estimate_pooled(
        rows, entry["reports"], entry["devices"], c, weights=weights, fleet=fleet
    )


def linear_functionals(entry: Entry) -> Iterator[Compared]:
    f = np.array(entry["f"], dtype=np.float64)
    estimated = replace(_pooled(entry), raw=f)
    yield Compared("A", estimated.moments.base, entry.number("A"))
    yield Compared("B", estimated.moments.base_slope, entry.number("B"))
    yield Compared("dilution", estimated.dilution, entry.number("dilution"))
    yield Compared("n_eff", estimated.n_eff, entry.number("n_eff"))
    for name, found in entry.matching(r"difference_(\d+)_(\d+)"):
        got = difference(estimated, int(found[1]), int(found[2]))
        yield from _contrast(name, got, entry.inner(name))
    for name, found in entry.matching(r"mean_of_midpoints_on_(\d+)_(\d+)"):
        edges = np.linspace(float(found[1]), float(found[2]), f.size + 1).tolist()
        yield from _contrast(name, mean(estimated, midpoints(edges)), entry.inner(name))
    yield from _distribution(estimated, entry.each("cdf"))
    for name, _ in entry.matching(r"fleet.*"):
        fleet = entry.inner(name)
        dilution = _pooled(entry, int(fleet["size"])).dilution
        yield Compared(name, dilution, fleet.number("dilution"))


def _contrast(name: str, got: Contrast, entry: Entry) -> Iterator[Compared]:
    for part in ("value", "privacy_variance", "sampling_variance"):
        yield Compared(f"{name}.{part}", getattr(got, part), entry.number(part))


def _distribution(estimated: Estimate, edges: list[Entry]) -> Iterator[Compared]:
    """By its own formula, and as the weighted sum that it is."""
    got = cdf(estimated)
    for entry in edges:
        j = int(entry["edge"])
        yield Compared(f"cdf[{j}].value", float(got.values[j - 1]), entry.number("value"))
        below = (np.arange(estimated.raw.size) < j).astype(np.float64)
        yield from _contrast(f"contrast[{j}]", contrast(estimated, below), entry)


def skew_corrected_intervals(entry: Entry) -> Iterator[Compared]:
    moments = _pooled(entry).moments
    confidence = float(entry.get("confidence", CONFIDENCE))
    z = critical_value(confidence, int(entry["comparisons"]))
    yield Compared("z", z, entry.number("z"))
    for point in entry.each("moments"):
        f = np.array([point.number("f")])
        yield Compared("variance", float(moments.variance(f)[0]), point.number("variance"))
        yield Compared("skewness", float(moments.skewness(f)[0]), point.number("skewness"))
    intervals = entry.each("intervals")
    low, high = skew_corrected_interval([i.number("raw") for i in intervals], moments, z=z)
    for interval, below, above in zip(intervals, low, high):
        yield Compared("low", float(below), interval.number("low"))
        yield Compared("high", float(above), interval.number("high"))


# --- One round for life, two cells, and nested reports.


def nested(entry: Entry) -> Iterator[Compared]:
    levels = entry.each("levels")
    schedule = [level.number("eps") for level in levels]
    got = Nested.calibrate(entry["protocol"], k=int(entry["k"]), schedule=schedule)
    for number, (level, alone) in enumerate(zip(levels, got.levels), start=1):
        yield same("level", number, level["level"])
        yield Compared("p", alone.p1, level.number("p"))
        yield Compared("q", alone.q1, level.number("q"))
        yield Compared("variance at 0", alone.device_variance(False), level.number("n_var_at_0"))
        if "from_level_above" in level:
            above = level.inner("from_level_above")
            for name, probability in zip("pq", got.steps(Decimal)[number - 1]):
                yield Compared(f"step {name}", float(probability), above.number(name))


def loloha(entry: Entry) -> Iterator[Compared]:
    budget = {name: entry.number(name) for name in ("eps_inf", "eps_1")}
    hashed = Hashed.calibrate(k=ANY_K, cells=int(entry["g"]), **budget)
    one = _static(hashed, 1)
    for name in ("p1", "q1", "p2", "q2", "ps"):
        yield Compared(name, getattr(hashed.cell, name), entry.number(name))
    yield Compared("qs", float(hashed.exact.q1), entry.number("qs"))
    yield Compared("variance at 0", one.v0, entry.number("n_var_at_0"))
    yield Compared("closed form at 0", one.v0, entry.number("closed_form_at_0"))
    yield Compared("variance, holder", one.v1, entry.number("n_var_holder"))
    for name, found in entry.matching(r"n_var_at_0_pooled_(\d+)"):
        yield Compared(name, _static(hashed, int(found[1])).v0, entry.number(name))
    memo = _static(hashed, 10**18).v0  # that many reports reveal the memo
    yield Compared("variance at 0, memo", memo, entry.number("n_var_at_0_memo"))
    yield Compared("ledger", hashed.lifetime_epsilon, entry.number("largest_ledger"))
    for name in ("change_seen", "change_seen_if_cells_differ"):
        yield Compared(name, getattr(hashed, name), entry.number(name))


def _static(hashed: Hashed, reports: int) -> Estimate:
    """One device whose value does not change."""
    return estimate_pooled(np.zeros((1, hashed.k), np.int64), [reports], [1], hashed)


def change_log_ratio_two_cells(entry: Entry) -> Iterator[Compared]:
    eps_inf, eps_1 = entry.number("eps_inf"), entry.number("eps_1")
    cell = calibrate("L-GRR", k=2, eps_inf=eps_inf, eps_1=eps_1)
    got = change_log_ratio(cell, int(entry["reports"]))
    yield Compared("log-ratio", got, entry.number("value"))


def rounds_for_life(entry: Entry) -> Iterator[Compared]:
    once = Once.calibrate(
        k=int(entry["k"]),
        epsilon=entry.number("eps"),
        rounds=int(entry["rounds"]),
        each=int(entry["each"]),
    )
    devices, window, f = int(entry["devices"]), int(entry["window"]), entry.number("f")
    yield same("protocol", once.calibration.protocol, entry["protocol"])
    yield Compared("p", once.calibration.p1, entry.number("p"))
    yield Compared("q", once.calibration.q1, entry.number("q"))
    expected = once.expected_reports(devices, window)
    yield Compared("expected reports", expected, entry.number("expected_reports"))
    for name, got in zip(("privacy", "sampling"), once.window_variance(devices, window, f)):
        yield Compared(f"{name} variance", got, entry.number(f"{name}_variance"))
    yield Compared("ledger", once.lifetime_epsilon, entry.number("ledger"))


KINDS: Final[dict[str, Callable[[Entry], Iterator[Compared]]]] = {
    "protocols": protocols,
    "feasibility": feasibility,
    "thresholds": nearest_thresholds,
    "longitudinal": longitudinal,
    "one_time": one_time,
    "largest_eps_1": largest,
    "choice": choice,
    "score_interval": uncorrected_interval,
    "simplex_projection": simplex_projection,
    "linear_functionals": linear_functionals,
    "skew_corrected_intervals": skew_corrected_intervals,
    "nested": nested,
    "loloha": loloha,
    "change_log_ratio_two_cells": change_log_ratio_two_cells,
    "rounds_for_life": rounds_for_life,
}
NOT_OURS: Final = {"linked_tables"}  # estimators that keep each device's reports together


# --- the command

LARGEST: Final = 1e-12


class Unreadable(Exception):
    """A file, or an entry, is not what it should be; the text says where and what to do."""


@dataclass
class Verdict:
    """What became of the entries of one kind in one file."""

    kind: str
    entries: int = 0
    numbers: int = 0
    largest: float = 0.0
    faults: list[str] = field(default_factory=list)
    skipped: bool = False  # the product has no such estimator

    @property
    def good(self) -> bool:
        return self.skipped or (self.entries > 0 and not self.faults)

    def line(self) -> str:
        if not self.entries:
            return f"  {self.kind:<28} not checked"
        return (
            f"  {self.kind:<28} {self.entries:>5} entries {self.numbers:>7} numbers   "
            f"largest relative difference {self.largest:.2g}"
        )


def read(path: Path) -> dict[str, Any]:
    """The lists of entries in a file, by kind."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Unreadable(f"{path} is not a file of reference values: it is not a JSON object")
    kinds = {kind: value for kind, value in document.items() if not isinstance(value, str)}
    if not kinds:
        raise Unreadable(f"{path} is not a file of reference values: it has no lists of entries")
    return kinds


def check(kind: str, entries: Any) -> Verdict:
    """Compare all entries of one kind."""
    verdict = Verdict(kind)
    if kind in NOT_OURS:
        verdict.skipped = True
    elif kind not in KINDS:
        verdict.faults.append(f"unknown kind {kind!r}; known are {', '.join(sorted(KINDS))}")
    elif not isinstance(entries, list) or not entries:
        verdict.faults.append(f"{kind} is not a list of entries")
    else:
        for number, fields in enumerate(entries):
            verdict.faults += (f"{kind}[{number}]: {fault}" for fault in _one(verdict, fields))
    return verdict


def _one(verdict: Verdict, fields: Any) -> Iterator[str]:
    """Compare one entry; what is wrong with it."""
    verdict.entries += 1
    try:
        entry = Entry(fields)
        for compared in KINDS[verdict.kind](entry):
            verdict.numbers += 1
            verdict.largest = max(verdict.largest, compared.difference)
            if not compared.difference <= LARGEST:
                yield f"{compared.name} is {compared.got!r}, the reference says {compared.wanted!r}"
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        yield f"cannot be checked: {error}"
    else:
        unseen = sorted(entry.unseen())
        if unseen:
            yield f"unknown fields {', '.join(unseen)}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.pass_context
def main(ctx: click.Context, files: tuple[Path, ...]) -> None:
    """Compare the code with files of reference values.

    Example: python scripts/check_vectors.py protocol_spec/vectors/statistics.json
    """
    good = True
    for path in files:
        try:
            kinds = read(path)
            click.echo(str(path))
            verdicts = [check(kind, entries) for kind, entries in kinds.items()]
        except Unreadable as error:
            click.echo(f"error: {error}. Nothing in it was checked.", err=True)
            good = False
        else:
            good = _print(verdicts) and good
    ctx.exit(0 if good else 1)


def _print(verdicts: list[Verdict]) -> bool:
    """Print the verdicts; whether all of them are good."""
    for verdict in verdicts:
        click.echo(verdict.line())
        for fault in verdict.faults[:5]:
            click.echo(f"    {fault}", err=True)
        if len(verdict.faults) > 5:
            click.echo(f"    … and {len(verdict.faults) - 5} more", err=True)
    return all(verdict.good for verdict in verdicts)


if __name__ == "__main__":
    main()
