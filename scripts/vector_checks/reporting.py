"""One round for life, two cells, and nested reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Final

import numpy as np

from protocol_spec import calibrate
from protocol_spec.estimation import Estimate, estimate_pooled
from protocol_spec.mechanisms import Hashed, Nested, Once, change_log_ratio
from vector_checks.calibration import ANY_K
from vector_checks.entries import Compared, Entry, same


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
            for name, chance in zip("pq", got.steps(Decimal)[number - 1]):
                yield Compared(f"step {name}", float(chance), above.number(name))


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
    memo = _static(hashed, 10**18).v0  # so many reports tell the memo
    yield Compared("variance at 0, memo", memo, entry.number("n_var_at_0_memo"))
    yield Compared("ledger", hashed.lifetime_epsilon, entry.number("largest_ledger"))
    for name in ("change_seen", "change_seen_if_cells_differ"):
        yield Compared(name, getattr(hashed, name), entry.number(name))


def _static(hashed: Hashed, reports: int) -> Estimate:
    """One device with a value that stays."""
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
    "nested": nested,
    "loloha": loloha,
    "change_log_ratio_two_cells": change_log_ratio_two_cells,
    "rounds_for_life": rounds_for_life,
}
