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
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
import click
import numpy as np

from protocol_spec import (
    Calibration,
    as_drawn,
    calibrate,
    calibrate_once,
    choose,
    drawn_probabilities,
    largest_eps_1,
    thresholds,
)
from protocol_spec.estimation import (
    Channel,
    Contrast,
    Estimate,
    cdf,
    contrast,
    critical_value,
    difference,
    difference_interval,
    estimate_pooled,
    fit_harmonic,
    fit_line,
    lie_shift,
    margins,
    mean,
    midpoints,
    plausibility,
    post_stratified,
    project_to_simplex,
    score_interval,
    series,
    share_for_shift,
    skew_corrected_interval,
    unevenness,
)
from protocol_spec.estimation.pairs import _unexplained
from protocol_spec.mechanisms import Hashed, Mechanism, Memoized, Nested, Once, change_log_ratio
from protocol_spec.randomiser import rounded

Entry = Mapping[str, Any]
Said = dict[str, Any]  # what the code says of an entry, in the shape and by the names of the entry
KINDS: Final[dict[str, tuple[frozenset[str], Callable[[Entry], Said]]]] = {}
NOT_OURS: Final = {"linked_tables"}  # estimators that keep each device's reports together


def kind(name: str, given: str) -> Callable[[Callable[[Entry], Said]], Callable[[Entry], Said]]:
    """Declare how entries of a kind are worked out, and which of their fields are `given`."""

    def declare(say: Callable[[Entry], Said]) -> Callable[[Entry], Said]:
        KINDS[name] = frozenset(given.split()), say
        return say

    return declare


# --- probabilities, privacy loss over time, variances, thresholds, feasibility and the choice ----


ANY_K: Final = 8  # for unary protocols, whose probabilities do not depend on k
PROBABILITIES: Final = ("p1", "q1", "p2", "q2", "ps", "qs")


def calibrated(entry: Entry) -> Calibration:
    """The calibration that an entry is about, in the words of either format."""
    protocol = entry["protocol"]
    method = entry.get("method", "paper" if protocol.endswith("-paper") else "exact")
    names = ("einf", "e1") if "einf" in entry else ("eps_inf", "eps_1")
    eps_inf, eps_1 = (float(entry[name]) for name in names)
    return calibrate(
        protocol.removesuffix("-paper"),
        k=int(entry.get("k", ANY_K)),
        eps_inf=eps_inf,
        eps_1=eps_1,
        method=method,
    )


def parts(source: object, *names: str) -> Said:
    return {name: getattr(source, name) for name in names}


@kind("protocols", "protocol k einf e1")
def protocols(entry: Entry) -> Said:
    """Names of variances say at which frequency: f025 is 0.25, f0 is 0."""
    c = calibrated(entry)
    said = parts(c, *PROBABILITIES) | {
        "eps2_ln_p2_over_q2": float((c.exact.p2 / c.exact.q2).ln()),
        "eps1_true": c.single_report_epsilon,
        "eps_t": {t: c.epsilon_after(int(t)) for t in entry["eps_t"]},
        "var_star_n1": c.variance(1),
        "total_mse_n1": c.device_variance(True) + (c.k - 1) * c.device_variance(False),
    }
    for name in entry:
        if found := re.fullmatch(r"var_(fixed|super|pooled)_f(\d)(\d*)_n1", name):
            f = float(f"{found[2]}.{found[3] or '0'}")
            if found[1] == "pooled":
                said[name] = {t: c.pooled_variance(1, int(t), f) for t in entry[name]}
            else:
                said[name] = c.variance(1, f) if found[1] == "super" else c.pooled_variance(1, 1, f)
    return said


@kind("feasibility", "einf")
def feasibility(entry: Entry) -> Said:
    names = (("loue_max_e1", "L-OUE"), ("lsoue_max_e1", "L-SOUE"))
    return {name: largest_eps_1(p, eps_inf=float(entry["einf"])) for name, p in names}


@kind("thresholds", "protocol k einf e1")
def nearest_thresholds(entry: Entry) -> Said:
    """The reference rounds to the nearest at the epsilons, the code to more noise below them."""
    return {"thresholds_2_64": [float(p) * 2.0**64 for p in as_drawn(calibrated(entry)).exact]}


@kind("longitudinal", "protocol k eps_inf eps_1 method")
def longitudinal(entry: Entry) -> Said:
    c = calibrated(entry)
    return parts(c, *PROBABILITIES, "size") | {
        "variance": [c.variance(1, f) for f in (0.0, 0.25)],
        "epsilon_after": {t: c.epsilon_after(int(t)) for t in entry["epsilon_after"]},
        "pooled_variance": {
            t: c.pooled_variance(1, int(t), 0.25) for t in entry["pooled_variance"]
        },
        "thresholds": [str(number) for step in thresholds(c) for number in step],
    }


@kind("one_time", "protocol k epsilon")
def one_time(entry: Entry) -> Said:
    c = calibrate_once(entry["protocol"], k=entry["k"], epsilon=float(entry["epsilon"]))
    return {**parts(c, "p1", "q1", "size"), "variance": [c.variance(1, f) for f in (0.0, 0.25)]}


@kind("largest_eps_1", "protocol eps_inf")
def largest(entry: Entry) -> Said:
    return {"largest_eps_1": largest_eps_1(entry["protocol"], eps_inf=float(entry["eps_inf"]))}


@kind("choice", "k eps_inf eps_1 method")
def choice(entry: Entry) -> Said:
    budget = {name: entry[name] for name in ("k", "eps_inf", "eps_1", "method")}
    return {"chosen": choose(**budget).protocol}


# --- intervals, projections, differences, means, and distribution functions ----------------------


@kind("score_interval", "protocol k einf e1 n T fhat z")
def uncorrected_interval(entry: Entry) -> Said:
    c, raw = calibrated(entry), float(entry["fhat"])
    v0, v1 = (c.device_variance(holds, entry["T"]) / entry["n"] for holds in (False, True))
    low, high = score_interval([raw], v0, v1, z=float(entry["z"]))
    centre = min(max(raw, 0.0), 1.0)
    return {"V0": v0, "V1": v1, "centre_used": centre, "lo": float(low[0]), "hi": float(high[0])}


@kind("simplex_projection", "inp")
def simplex_projection(entry: Entry) -> Said:
    return {"out": project_to_simplex(entry["inp"]).tolist()}


def _pooled(entry: Entry, fleet: int | None = None) -> Estimate:
    """With no counts yet: errors depend on who reported how often, not on what."""
    c = calibrated(entry)
    weights = entry.get("weights", "reports")
    counts = np.zeros(c.k if weights == "reports" else (len(entry["reports"]), c.k), dtype=np.int64)
    return estimate_pooled(
        counts, entry["reports"], entry["devices"], c, weights=weights, fleet=fleet
    )


@kind("linear_functionals", "protocol k eps_inf eps_1 weights reports devices f")
def linear_functionals(entry: Entry) -> Said:
    f = np.array(entry["f"], dtype=np.float64)
    estimated = replace(_pooled(entry), raw=f)
    said: Said = {
        "A": estimated.moments.base,
        "B": estimated.moments.base_slope,
        "cdf": [_below(estimated, edge["edge"]) for edge in entry["cdf"]],
        **parts(estimated, "dilution", "n_eff"),
    }
    for name in entry:
        if found := re.fullmatch(r"difference_(\d+)_(\d+)", name):
            said[name] = _contrast(difference(estimated, int(found[1]), int(found[2])))
        elif found := re.fullmatch(r"mean_of_midpoints_on_(\d+)_(\d+)", name):
            edges = np.linspace(float(found[1]), float(found[2]), f.size + 1).tolist()
            said[name] = _contrast(mean(estimated, midpoints(edges)))
        elif name.startswith("fleet"):
            size = entry[name]["size"]
            said[name] = {"size": size, "dilution": _pooled(entry, size).dilution}
    return said


def _contrast(got: Contrast) -> Said:
    return parts(got, "value", "privacy_variance", "sampling_variance")


def _below(estimated: Estimate, edge: int) -> Said:
    """A share by its own formula, and the variances of the weighted sum that it is."""
    below = (np.arange(estimated.raw.size) < edge).astype(np.float64)
    value = float(cdf(estimated).values[edge - 1])
    return {**_contrast(contrast(estimated, below)), "edge": edge, "value": value}


@kind(
    "skew_corrected_intervals",
    "protocol k eps_inf eps_1 weights reports devices comparisons confidence",
)
def skew_corrected_intervals(entry: Entry) -> Said:
    moments = _pooled(entry).moments
    z = critical_value(entry.get("confidence", 0.95), entry["comparisons"])
    at = [point["f"] for point in entry["moments"]]
    raw = [interval["raw"] for interval in entry["intervals"]]
    known = (moments.variance(np.array(at)), moments.skewness(np.array(at)))
    return {
        "z": z,
        "moments": _table(("f", "variance", "skewness"), at, *known),
        "intervals": _table(
            ("raw", "low", "high"), raw, *skew_corrected_interval(raw, moments, z=z)
        ),
    }


def _table(names: tuple[str, ...], *columns: Any) -> list[Said]:
    return [dict(zip(names, map(float, row))) for row in zip(*columns, strict=True)]


# --- changes --------------------------------------------------------------------------------------


@kind("trends", "reporting protocol k period n rounds response raw weights")
def trends(entry: Entry) -> Said:
    protocol, k = entry["protocol"], entry["k"]
    mechanism: Mechanism
    if entry["reporting"] == Memoized.reporting:
        mechanism = Memoized(calibrate(protocol, k=k, eps_inf=2.0, eps_1=0.6), 1)
    else:
        mechanism = Once.calibrate(protocol, k=k, epsilon=2.0, rounds=100)
    of = series(mechanism, entry["raw"], entry["rounds"], entry["n"], entry["response"])
    weights = np.array(entry["weights"])
    if entry["period"]:
        return {"change": float(fit_harmonic(of, entry["period"]).swing(weights)[0].value)}
    change = fit_line(of).change(weights)
    error = (change.high - change.low) / 2.0 / critical_value(0.95)
    return {"change": float(change.value), "variance": float(error) ** 2}


@kind("result_differences", "first second correlation")
def result_differences(entry: Entry) -> Said:
    ends = difference_interval(entry["first"], entry["second"], entry["correlation"])
    return dict(zip(("low", "high"), map(float, ends)))


# --- pairs, liars, silent devices -----------------------------------------------------------------

OF_ROUNDS: Final = "protocol k eps_inf eps_1 weights reports devices"


@kind("pairs", f"{OF_ROUNDS} shape raw")
def pairs(entry: Entry) -> Said:
    made, shape = replace(_pooled(entry), raw=np.array(entry["raw"])), tuple(entry["shape"])
    return {
        "margins": [
            {"values": each.raw.tolist(), "variance": each.moments.variance(each.raw).tolist()}
            for each in margins(made, shape)
        ],
        "unexplained": float(_unexplained(made.shifted.reshape(1, *shape), made.moments)[0]),
    }


@kind("plausibility", f"{OF_ROUNDS} raw results false_alarms")
def plausible(entry: Entry) -> Said:
    made = replace(_pooled(entry), raw=np.array(entry["raw"]))
    found = plausibility(made, entry["results"], entry["false_alarms"])
    return parts(found, "total", "sum_z", "sum_limit", "lowest", "lowest_z", "lowest_limit")


@kind("lies", "protocol k eps_inf eps_1 levels share error weight")
def lies(entry: Entry) -> Said:
    protocol, k, levels = (entry[name] for name in ("protocol", "k", "levels"))
    channels: tuple[Channel, ...] = (
        Nested.calibrate(protocol, k=k, schedule=levels).channels
        if levels
        else (calibrated(entry),)
    )
    return {
        "shift": lie_shift(channels, entry["share"], entry["weight"]),
        "share_for_error": share_for_shift(channels, entry["error"], entry["weight"]),
    }


@kind("post_stratified", "protocol k eps_inf eps_1 totals groups f")
def stratified(entry: Entry) -> Said:
    made = [
        replace(_pooled({**entry, **group}), raw=np.array(group["raw"]))
        for group in entry["groups"]
    ]
    whole, f = post_stratified(made, entry["totals"]), np.array(entry["f"])
    return {
        "raw": whole.raw.tolist(),
        "variance": whole.moments.variance(f).tolist(),
        "skewness": whole.moments.skewness(f).tolist(),
        "n_eff": whole.n_eff,
    }


@kind("unevenness", "reports devices")
def uneven(entry: Entry) -> Said:
    return {"largest": unevenness(entry["reports"], entry["devices"])}


# --- one round for life, two cells, and nested reports --------------------------------------------


@kind("nested", "protocol k")
def nested(entry: Entry) -> Said:
    schedule = [float(level["eps"]) for level in entry["levels"]]
    got = Nested.calibrate(entry["protocol"], k=entry["k"], schedule=schedule)
    levels: list[Said] = [
        {"level": number, "eps": eps, "p": c.p1, "q": c.q1, "n_var_at_0": c.device_variance(False)}
        for number, (eps, c) in enumerate(zip(schedule, got.levels), start=1)
    ]
    for level, step, above in zip(levels[:-1], got.steps(Decimal), got.levels[1:]):
        drawn = drawn_probabilities(rounded(step, above.unary), got.k, above.size or None)
        level["from_level_above"] = dict(zip("pq", map(float, drawn)))
    return {"levels": levels}


@kind("loloha", "g eps_inf eps_1")
def loloha(entry: Entry) -> Said:
    hashed = Hashed.calibrate(
        k=ANY_K, cells=entry["g"], eps_inf=entry["eps_inf"], eps_1=entry["eps_1"]
    )
    one = _static(hashed, 1)
    said = parts(hashed.cell, "p1", "q1", "p2", "q2", "ps") | {
        **parts(hashed, "change_seen", "change_seen_if_cells_differ"),
        "qs": float(hashed.exact.q1),
        "n_var_at_0": one.v0,
        "closed_form_at_0": one.v0,
        "n_var_holder": one.v1,
        "n_var_at_0_memo": _static(hashed, 10**18).v0,  # that many reports reveal the memo
        "largest_ledger": hashed.lifetime_epsilon,
    }
    for name in entry:
        if found := re.fullmatch(r"n_var_at_0_pooled_(\d+)", name):
            said[name] = _static(hashed, int(found[1])).v0
    return said


def _static(hashed: Hashed, reports: int) -> Estimate:
    """One device whose value does not change."""
    return estimate_pooled(np.zeros((1, hashed.k), np.int64), [reports], [1], hashed)


@kind("change_log_ratio_two_cells", "eps_inf eps_1 reports")
def change_log_ratio_two_cells(entry: Entry) -> Said:
    cell = calibrate("L-GRR", k=2, eps_inf=entry["eps_inf"], eps_1=entry["eps_1"])
    return {"value": change_log_ratio(cell, entry["reports"])}


@kind("rounds_for_life", "k eps devices rounds each window f")
def rounds_for_life(entry: Entry) -> Said:
    once = Once.calibrate(
        entry["protocol"],
        k=entry["k"],
        epsilon=entry["eps"],
        rounds=entry["rounds"],
        each=entry["each"],
    )
    devices, window = entry["devices"], entry["window"]
    privacy, sampling = once.window_variance(devices, window, entry["f"])
    return {
        "protocol": once.calibration.protocol,
        "p": once.calibration.p1,
        "q": once.calibration.q1,
        "expected_reports": once.expected_reports(devices, window),
        "privacy_variance": privacy,
        "sampling_variance": sampling,
        "ledger": once.lifetime_epsilon,
    }


# --- comparing ------------------------------------------------------------------------------------


LARGEST: Final = 1e-12
Difference = tuple[str, float, object, object]  # where, how much, the code's, the reference's


def compared(got: Any, wanted: Any, place: str = "") -> Iterator[Difference]:
    """Every number and word of the reference next to the code's; both have the same fields."""
    if isinstance(got, dict):
        for name in got.keys() - wanted.keys():
            raise ValueError(f"the field {name!r} is missing")
        for name, inner in wanted.items():
            if name in got:
                yield from compared(got[name], inner, f"{place}.{name}".lstrip("."))
            elif not isinstance(inner, str):  # a text is a remark
                raise ValueError(f"unknown field {name!r}")
    elif isinstance(got, list):
        for i, pair in enumerate(zip(got, wanted, strict=True)):
            yield from compared(*pair, f"{place}[{i}]")
    elif isinstance(got, float):
        error = abs(got - float(wanted)) / (abs(float(wanted)) or 1.0)
        yield place, math.inf if math.isnan(error) else error, got, wanted
    else:  # a word, or an integer to its last digit
        yield place, 0.0 if got == wanted else math.inf, got, wanted


def check(name: str, entries: Any) -> tuple[str, list[str]]:
    """Compare all entries of one kind; what to say of them, and what is wrong."""
    if name in NOT_OURS:
        return f"  {name:<28} not checked: the product has no such estimator", []
    numbers, largest, faults = 0, 0.0, list[str]()
    if name not in KINDS:
        faults.append(f"unknown kind {name!r}; known are {', '.join(sorted(KINDS))}")
    elif not isinstance(entries, list) or not entries:
        faults.append(f"{name} is not a list of entries")
    else:
        for number, entry in enumerate(entries):
            try:
                for place, error, got, wanted in _one(name, entry):
                    numbers, largest = numbers + 1, max(largest, error)
                    if error > LARGEST:
                        what = f"{place} is {got!r}, the reference says {wanted!r}"
                        faults.append(f"{name}[{number}]: {what}")
            except KeyError as error:
                faults.append(f"{name}[{number}]: the field {error} is missing")
            except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
                faults.append(f"{name}[{number}] cannot be checked: {error}")
    size = len(entries) if isinstance(entries, list) else 0
    found = f"{size:>5} entries {numbers:>7} numbers   largest relative difference {largest:.2g}"
    return f"  {name:<28} {found}", faults


def _one(name: str, entry: Any) -> Iterator[Difference]:
    if not isinstance(entry, dict):
        raise TypeError("an entry is an object with named fields")
    given, say = KINDS[name]
    said = say(entry)
    wanted = {field: value for field, value in entry.items() if field not in given}
    return compared(said, wanted)


def read(path: Path) -> dict[str, Any]:
    """The lists of entries in a file, by kind. Anything else is a ValueError that says so."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("is not a file of reference values: it is not a JSON object")
    kinds = {name: value for name, value in document.items() if not isinstance(value, str)}
    if not kinds:
        raise ValueError("is not a file of reference values: it has no lists of entries")
    return kinds


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
        except ValueError as error:
            click.echo(f"error: {path} {error}. Nothing in it was checked.", err=True)
            good = False
            continue
        click.echo(str(path))
        for name, entries in kinds.items():
            line, faults = check(name, entries)
            click.echo(line)
            for fault in faults[:5]:
                click.echo(f"    {fault}", err=True)
            if len(faults) > 5:
                click.echo(f"    … and {len(faults) - 5} more", err=True)
            good = good and not faults
    ctx.exit(0 if good else 1)


if __name__ == "__main__":
    main()
