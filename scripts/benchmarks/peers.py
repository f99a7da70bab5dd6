"""The same work by multi-freq-ldpy and pure-ldp, side by side, in turns, on the same inputs.

Speed is CPU time, which other programs on the machine disturb least; a ratio above 1 means that
ours takes less. Error is the paper's metric; a ratio below 1 means that ours errs less.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.accuracy import (
    BUDGETS,
    POLISH,
    PROJECTED,
    Budget,
    Ratio,
    geometric_mean,
    our_errors,
    ratio_of_means,
    squared_error,
    truth,
)
from benchmarks.measurements import Measurement, in_turns, ratio_of
from benchmarks.our_side import Round, Timed, Values, campaign, device_round, simulated_round
from benchmarks.peer_environment import Peers
from protocol_spec import Calibration, calibrate, calibrate_once
from simulation.model.datasets import Dataset, load

K: Final = 41  # native-country, the attribute of Adult with the most values
BUDGET: Final = Budget(2.0, 0.6)
OUR_RUNS: Final = 2000
LARGEST_ERROR: Final = 0.88  # of the exact calibration, projected, over the peer's
SPEED_UP: Final = 20.0  # what simulating a round must gain over multi-freq-ldpy
FEWER: Final = 20  # a device's own randomiser is run for one user in so many
SIMULATOR, DEVICE = "simulator", "devices and collector"
COMPILED: Final = "multi-freq-ldpy in a compiled loop"
BOTH: Final = "randomise + aggregate"
HALVES: Final[dict[str, Callable[[Timed], float]]] = {
    BOTH: lambda t: t.both,
    "randomise a user": lambda t: t.randomise,
    "aggregate a report": lambda t: t.aggregate,
}


@dataclass(frozen=True, slots=True)
class Bench:
    """The peers, where inputs are written for them, and how often everything is repeated."""

    peers: Peers
    scratch: Path
    devices: int
    repeats: int

    def ask(self, values: Path, seed: int, budget: Budget, **task: Any) -> Timed:
        """One task of the driver."""
        told = self.peers.ask(values=str(values), seed=seed, **budget._asdict(), **task)
        return Timed(told["randomise"], told["aggregate"], told["frequencies"])

    def inputs(self, name: str, values: Values) -> Path:
        """The same values for the peers, as a file."""
        path = self.scratch / f"{name}.npy"
        np.save(path, values)
        return path


def measure(peers: Peers, devices: int, repeats: int, runs: int) -> list[Measurement]:
    """All sections; `runs` campaigns of the peer for each budget of the error."""
    with tempfile.TemporaryDirectory(prefix="allomfree-inputs-") as scratch:
        bench = Bench(peers, Path(scratch), devices, repeats)
        return [
            *rounds(bench),
            *one_time(bench),
            *whole_campaign(bench, load("adult")),
            *errors(bench, load("adult"), runs),
        ]


# --- one attribute -------------------------------------------------------------------------------


def values_of(n: int) -> Values:
    """n users with native countries as frequent as in Adult: the same on every call."""
    counts = next(a.counts for a in load("adult").attributes if a.k == K)
    chances = np.asarray(counts) / sum(counts)
    drawn: Values = np.random.default_rng(41).choice(K, size=n, p=chances)
    return drawn


def rounds(bench: Bench) -> list[Measurement]:
    """One round of one attribute with each of the two protocols that ALLOMFREE chooses from."""
    everyone = values_of(bench.devices)
    rows = []
    for protocol in ("L-OSUE", "L-GRR"):
        ours = calibrate(protocol, k=K, **BUDGET._asdict())
        task = {"oracle": "multi-freq-ldpy", "protocol": protocol, "k": K}
        rows += _round(bench, ours, everyone, task, at_least=SPEED_UP)
    ours = calibrate("L-OSUE", k=K, **BUDGET._asdict())
    fastest = {"oracle": "multi-freq-ldpy", "protocol": "L-OSUE", "k": K, "compiled": True}
    pairs = _pairs(bench, simulated_round, ours, everyone, fastest)
    return [*rows, *_rows("L-OSUE", f"{COMPILED} / {SIMULATOR}", pairs, len(everyone))]


def one_time(bench: Bench) -> list[Measurement]:
    """pure-ldp's one-time protocols at eps_1, on fewer users: it takes much longer for each."""
    some = values_of(bench.devices // 5)
    rows = []
    for protocol in ("OUE", "GRR"):
        ours = calibrate_once(protocol, k=K, epsilon=BUDGET.eps_1)
        rows += _round(bench, ours, some, {"oracle": "pure-ldp", "protocol": protocol, "k": K})
    return rows


def _round(
    bench: Bench,
    calibration: Calibration,
    values: Values,
    task: dict[str, Any],
    at_least: float | None = None,
) -> list[Measurement]:
    protocol, peer = task["protocol"], task["oracle"]
    few = values[: max(1, len(values) // FEWER)]
    simulated = _pairs(bench, simulated_round, calibration, values, task)
    devices = _pairs(bench, device_round, calibration, few, task)
    return [
        *_rows(protocol, f"{peer} / {SIMULATOR}", simulated, len(values), at_least),
        *_rows(protocol, f"{peer} / {DEVICE}", devices, len(few)),
    ]


def _pairs(
    bench: Bench, ours: Round, calibration: Calibration, values: Values, task: dict[str, Any]
) -> tuple[list[Timed], list[Timed]]:
    _say(f"{task['oracle']} {task['protocol']}, {len(values):,} users")
    given = bench.inputs("values", values)
    ours(calibration, values[: len(values) // 10], 0)  # the peers are warmed up too
    return in_turns(
        bench.repeats,
        lambda repeat: ours(calibration, values, repeat),
        lambda repeat: bench.ask(given, repeat, BUDGET, **task),
    )


def _rows(
    title: str,
    sides: str,
    pairs: tuple[list[Timed], list[Timed]],
    users: int,
    at_least: float | None = None,
) -> list[Measurement]:
    """Both halves together and each alone, with what one user or report costs each side."""
    rows = []
    for half, seconds in HALVES.items():
        mine, theirs = ([seconds(t) for t in side] for side in pairs)
        note = f"{users:,} users, {_micro(theirs, users)} / {_micro(mine, users)} each"
        wanted = at_least if half == BOTH else None
        rows.append(ratio_of(f"{title}, {half}: {sides}", theirs, mine, note=note, at_least=wanted))
    return rows


def _micro(seconds: Sequence[float], users: int) -> str:
    return f"{np.median(seconds) / users * 1e6:.3g} µs"


# --- a campaign ----------------------------------------------------------------------------------


def population(data: Dataset) -> Values:
    """A user a row, an attribute a column, with exactly the data set's counts in each column."""
    rng = np.random.default_rng(data.n)
    columns = [rng.permutation(np.repeat(np.arange(a.k), a.counts)) for a in data.attributes]
    users: Values = np.stack(columns, axis=1)
    return users


def whole_campaign(bench: Bench, data: Dataset) -> list[Measurement]:
    """Everybody draws an attribute and reports it once; every histogram is estimated."""
    return [
        *_campaign_rows(bench, data, SIMULATOR, simulated_round),
        *_campaign_rows(bench, data, DEVICE, device_round),
    ]


def _campaign_rows(bench: Bench, data: Dataset, who: str, ours: Round) -> list[Measurement]:
    _say(f"campaign of {data.title} by {who}")
    users, sizes = population(data), [a.k for a in data.attributes]
    given = bench.inputs("users", users)
    campaign(ours, users, sizes, BUDGET, 0)
    pairs = in_turns(
        bench.repeats,
        lambda repeat: campaign(ours, users, sizes, BUDGET, repeat),
        lambda repeat: bench.ask(given, repeat, BUDGET, oracle="campaign", sizes=sizes),
    )
    return _rows(f"{data.title}, whole campaign", f"multi-freq-ldpy / {who}", pairs, len(users))[:1]


def errors(bench: Bench, data: Dataset, runs: int) -> list[Measurement]:
    """Error of our estimates over that of the peer's at the same budget."""
    sizes, true = [a.k for a in data.attributes], truth(data)
    given = bench.inputs("users", population(data))
    ratios: dict[str, list[Ratio]] = {how: [] for how in POLISH}
    for number, budget in enumerate(BUDGETS):
        _say(f"error of {data.title} at {budget}")
        asked = {"oracle": "campaign", "sizes": sizes}
        seeds = range(number * runs, (number + 1) * runs)
        told = [bench.ask(given, seed, budget, **asked).estimates for seed in seeds]
        theirs = [float(squared_error(estimates, true)) for estimates in told]
        for how, mine in our_errors(data, budget, OUR_RUNS, number).items():
            ratios[how].append(ratio_of_means(mine.tolist(), theirs))
    return [row for how, found in ratios.items() for row in _error_rows(data, how, found, runs)]


def _error_rows(data: Dataset, how: str, found: Sequence[Ratio], runs: int) -> list[Measurement]:
    mean = geometric_mean(found)
    limit = LARGEST_ERROR if how == PROJECTED else None
    rows = [Measurement(f"{data.title}, error, {how}: geometric mean", mean.value, "x", limit)]
    rows += [
        Measurement(f"{data.title}, error, {how}: {budget}", ratio.value, "x")
        for budget, ratio in zip(BUDGETS, found)
    ]
    note = f"{runs} runs of the peer, {OUR_RUNS:,} of ours"
    return [replace(m, note=f"± {r.error:.2g}, {note}") for m, r in zip(rows, (mean, *found))]


def _say(what: str) -> None:
    print(what, file=sys.stderr)
