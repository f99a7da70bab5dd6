"""The same work by multi-freq-ldpy and pure-ldp, in turns, on the same inputs; and the simulator's
cost at each depth.

Speed is CPU time, which other programs on the machine disturb least; a ratio above 1 means that
ours takes less. Error is the paper's metric: the squared error against the whole population,
averaged over the values of an attribute and then over attributes; below 1 ours is smaller.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.report import Measurement, in_turns, median_of, progress, ratio_of
from benchmarks.workload import manifest
from collector.store.common import count_bodies
from paper.gains import clip_and_renormalise
from protocol_spec import ONE_TIME, Calibration, Randomiser, as_drawn, calibrate, calibrate_once
from protocol_spec.estimation import Array, estimate, project_to_simplex
from simulation import depths as report_depth
from simulation import depths as statistics_depth
from simulation.bulk import BulkRandomiser, count
from simulation.counts import one_round, sample_groups
from simulation.fleet import Fleet
from simulation.population import Behaviour, Dataset, load
from testbed.processes import peak_memory_mib


class Budget(NamedTuple):
    """Privacy loss of a device's values over its life, and of one report."""

    eps_inf: float
    eps_1: float

    def __str__(self) -> str:
        return f"eps_inf {self.eps_inf:g}, eps_1 {self.eps_1:g}"


BUDGETS: Final = tuple(Budget(e, round(a * e, 2)) for a in (0.3, 0.6) for e in (1.0, 4.0))

PROJECTED: Final = "exact, projected"
POLISH: Final[dict[str, Callable[[Array], Array]]] = {
    "exact, clipped as the peer does": clip_and_renormalise,
    PROJECTED: project_to_simplex,
}


def truth(data: Dataset) -> list[Array]:
    return [np.asarray(a.counts) / data.n for a in data.attributes]


def squared_error(estimates: Sequence[npt.ArrayLike], true: Sequence[Array]) -> Array:
    """The metric, for one run or for as many as the estimates' leading axis holds."""
    errors = [np.mean((np.asarray(e) - f) ** 2, axis=-1) for e, f in zip(estimates, true)]
    mean: Array = np.mean(errors, axis=0)
    return mean


def our_errors(data: Dataset, budget: Budget, runs: int, seed: int) -> dict[str, Array]:
    """The metric of each run with the exact calibration, for each kind of post-processing."""
    rng = np.random.default_rng(seed)
    d = len(data.attributes)
    sizes = rng.multinomial(data.n, [1 / d] * d, size=runs)
    raw = []
    for a, held in enumerate(sample_groups(rng, [a.counts for a in data.attributes], sizes)):
        nominal = calibrate("ALLOMFREE", k=data.attributes[a].k, **budget._asdict())
        calibration = as_drawn(nominal)
        counts = one_round(rng, calibration, held)
        raw.append((counts / sizes[:, a, np.newaxis] - calibration.qs) / calibration.gap)
    true = truth(data)
    return {how: squared_error([polish(r) for r in raw], true) for how, polish in POLISH.items()}


class Ratio(NamedTuple):
    """A ratio of two means and its standard error."""

    value: float
    error: float


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Of independent samples; the error to first order, from both samples' spread."""

    def relative_error(sample: Sequence[float]) -> float:
        return statistics.stdev(sample) / math.sqrt(len(sample)) / statistics.fmean(sample)

    value = statistics.fmean(above) / statistics.fmean(below)
    return Ratio(value, value * math.hypot(relative_error(above), relative_error(below)))


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    """Of independent ratios, with its standard error to first order."""
    value = math.exp(statistics.fmean(math.log(r.value) for r in ratios))
    relative = math.sqrt(sum((r.error / r.value) ** 2 for r in ratios)) / len(ratios)
    return Ratio(value, value * relative)


# --- the peers' environment ----------------------------------------------------------------------


DRIVER: Final = Path(__file__).with_name("peer_driver.py")
PEERS: Final = ("multi-freq-ldpy", "pure-ldp")
# What was compared. pure-ldp imports scikit-learn and statsmodels without declaring them;
# multi-freq-ldpy hashes text, which xxhash 4 refuses.
PINS: Final = (
    "multi-freq-ldpy==0.2.5",
    "pure-ldp==1.2.0",
    "numpy==2.4.6",
    "numba==0.68.1",
    "scipy==1.17.1",
    "scikit-learn==1.9.1",
    "statsmodels==0.15.0",
    "xxhash==3.8.2",
    "bitarray==3.12.3",
    "bitstring==5.0.0",
)


class PeerFailed(RuntimeError):
    """The peers could not be installed or could not do a task; nothing was compared."""


class Peers:
    """The driver in a process of its own, which answers one task after the other."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Our own packages must not be found by accident: the peers run in what they install.
            env={"PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "ignore", "NUMBA_NUM_THREADS": "1"},
        )

    def ask(self, **task: Any) -> dict[str, Any]:
        """The answer to one task, or PeerFailed with the driver's error."""
        sent, received = self._process.stdin, self._process.stdout
        if sent is None or received is None:
            raise PeerFailed("the peers' driver has no pipes")
        try:
            sent.write(json.dumps(task) + "\n")
            sent.flush()
            line = received.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerFailed(f"the peers' driver ended with exit status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"a peer could not do {task}: {answer['error']}")
        return answer

    def versions(self) -> dict[str, str]:
        """Of the peers, and of what their speed comes from."""
        return self.ask(names=[*PEERS, "numpy", "numba"])

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def peers(python: Path | None = None) -> Iterator[Peers]:
    """The peers in a temporary environment, or behind an interpreter that has them already."""
    with tempfile.TemporaryDirectory(prefix="allomfree-peers-") as scratch:
        driver = Peers(python or _install(Path(scratch) / "venv"))
        try:
            yield driver
        finally:
            driver.close()


def _install(directory: Path) -> Path:
    """Make the environment, with the pip of this one; returns its interpreter."""
    progress(f"installing {' and '.join(PEERS)} into a temporary environment")
    python = directory / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check")
    for command in (
        [sys.executable, "-m", "venv", "--without-pip", str(directory)],
        [*pip, "install", "--quiet", *PINS],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise PeerFailed(
                f"the peers could not be installed, so nothing was compared:\n{reason}\nThey come "
                "from the package index that pip is set up for; check that it can be reached, or "
                "name an interpreter that has them with --peer-python"
            )
    return python


# --- our side ------------------------------------------------------------------------------------
# Both kinds of round draw a memo and then a report from it for every user, as the peers do; of a
# one-time protocol the memo is the report.


Values = npt.NDArray[np.int64]


class Timed(NamedTuple):
    """CPU seconds of both halves, and the estimates that came out, one array an attribute."""

    randomise: float
    aggregate: float
    estimates: Sequence[Array]

    @property
    def both(self) -> float:
        return self.randomise + self.aggregate


def simulated_round(calibration: Calibration, values: Values, seed: int) -> Timed:
    """Individual reports of all users at once, from a seeded generator."""
    rng = np.random.Generator(np.random.SFC64(seed))  # the simulator's own choice
    begin = time.process_time()
    bulk = BulkRandomiser(calibration)
    memos = bulk.memoize(rng, values)
    reports = memos if calibration.protocol in ONE_TIME else bulk.report(rng, memos)
    between = time.process_time()
    counts = count(bulk.format, reports)
    raw = estimate(counts, len(reports), as_drawn(calibration)).raw
    return Timed(between - begin, time.process_time() - between, [raw])


def device_round(calibration: Calibration, values: Values, _seed: int) -> Timed:
    """Each user's device with the system's random bytes, and the collector's counting."""
    indices = values.tolist()
    begin = time.process_time()
    device = Randomiser(calibration, os.urandom)
    memos = [device.memoize(index) for index in indices]
    reports = memos if calibration.protocol in ONE_TIME else [device.report(m) for m in memos]
    between = time.process_time()
    counts = count_bodies(reports, device.format)
    raw = estimate(counts, len(reports), as_drawn(calibration)).raw
    return Timed(between - begin, time.process_time() - between, [raw])


Round = Callable[[Calibration, Values, int], Timed]


def our_campaign(
    a_round: Round, users: Values, sizes: Sequence[int], budget: tuple[float, float], seed: int
) -> Timed:
    """ALLOMFREE over several attributes: every user draws one of them and reports its value."""
    begin = time.process_time()
    drawn = np.random.default_rng(seed).integers(0, len(sizes), len(users))
    sample_groups = [users[drawn == a, a] for a in range(len(sizes))]
    choices = [calibrate("ALLOMFREE", k=k, eps_inf=budget[0], eps_1=budget[1]) for k in sizes]
    sampling = time.process_time() - begin
    parts = [
        a_round(c, held, seed + 1 + a) for a, (c, held) in enumerate(zip(choices, sample_groups))
    ]
    return Timed(
        sampling + sum(part.randomise for part in parts),
        sum(part.aggregate for part in parts),
        [part.estimates[0] for part in parts],
    )


# --- speed and error against the peers -----------------------------------------------------------


K: Final = 41  # native-country, the attribute of Adult with the most values
BUDGET: Final = Budget(2.0, 0.6)
OUR_RUNS: Final = 2000
LARGEST_ERROR: Final = 0.88  # of the exact calibration, projected, over the peer's
SPEED_UP: Final = 20.0  # what simulating a round must gain over multi-freq-ldpy
FEWER: Final = 20  # a device's own randomiser is run for one user in 20
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
        done = self.peers.ask(values=str(values), seed=seed, **budget._asdict(), **task)
        return Timed(done["randomise"], done["aggregate"], done["frequencies"])

    def inputs(self, name: str, values: Values) -> Path:
        """The same values for the peers, as a file."""
        path = self.scratch / f"{name}.npy"
        np.save(path, values)
        return path


def measure(peers: Peers, devices: int, repeats: int, runs: int) -> list[Measurement]:
    """`runs` is the number of campaigns of the peer for each budget of the error."""
    with tempfile.TemporaryDirectory(prefix="allomfree-inputs-") as scratch:
        bench = Bench(peers, Path(scratch), devices, repeats)
        return [
            *rounds(bench),
            *one_time(bench),
            *whole_campaign(bench, load("adult")),
            *errors(bench, load("adult"), runs),
        ]


def values_of(n: int) -> Values:
    """n users with native countries as frequent as in Adult: the same on every call."""
    counts = next(a.counts for a in load("adult").attributes if a.k == K)
    drawn: Values = np.random.default_rng(41).choice(K, size=n, p=np.asarray(counts) / sum(counts))
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
    progress(f"{task['oracle']} {task['protocol']}, {len(values):,} users")
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
        each = [f"{np.median(side) / users * 1e6:.3g} µs" for side in (theirs, mine)]
        note = f"{users:,} users, {' / '.join(each)} each"
        wanted = at_least if half == BOTH else None
        rows.append(ratio_of(f"{title}, {half}: {sides}", theirs, mine, note=note, at_least=wanted))
    return rows


def population(data: Dataset) -> Values:
    """A user a row, an attribute a column, with exactly the data set's counts in each column."""
    rng = np.random.default_rng(data.n)
    columns = [rng.permutation(np.repeat(np.arange(a.k), a.counts)) for a in data.attributes]
    users: Values = np.stack(columns, axis=1)
    return users


def whole_campaign(bench: Bench, data: Dataset) -> list[Measurement]:
    """Everybody draws an attribute and reports it once; every histogram is estimated."""
    users, sizes = population(data), [a.k for a in data.attributes]
    given, title, rows = bench.inputs("users", users), f"{data.title}, whole campaign", []
    kinds: dict[str, Round] = {SIMULATOR: simulated_round, DEVICE: device_round}
    for who, ours in kinds.items():
        progress(f"campaign of {data.title} by {who}")
        our_campaign(ours, users, sizes, BUDGET, 0)  # a warm-up
        pairs = in_turns(
            bench.repeats,
            partial(our_campaign, ours, users, sizes, BUDGET),
            lambda repeat: bench.ask(given, repeat, BUDGET, oracle="campaign", sizes=sizes),
        )
        rows += _rows(title, f"multi-freq-ldpy / {who}", pairs, len(users))[:1]
    return rows


def errors(bench: Bench, data: Dataset, runs: int) -> list[Measurement]:
    """Error of our estimates over that of the peer's at the same budget."""
    sizes, true = [a.k for a in data.attributes], truth(data)
    given = bench.inputs("users", population(data))
    ratios: dict[str, list[Ratio]] = {how: [] for how in POLISH}
    for number, budget in enumerate(BUDGETS):
        progress(f"error of {data.title} at {budget}")
        theirs = peer_campaign_errors(bench, given, sizes, true, budget, number, runs)
        for how, mine in our_errors(data, budget, OUR_RUNS, number).items():
            ratios[how].append(ratio_of_means(mine.tolist(), theirs))
    return [row for how, found in ratios.items() for row in _error_rows(data, how, found, runs)]


def peer_campaign_errors(
    bench: Bench,
    users: Path,
    sizes: list[int],
    true: Sequence[Array],
    budget: Budget,
    number: int,
    runs: int,
) -> list[float]:
    """The metric of the peer's ALLOMFREE in `runs` campaigns; `number` selects their seeds."""
    seeds = range(number * runs, (number + 1) * runs)
    ask = partial(bench.ask, users, budget=budget, oracle="campaign", sizes=sizes)
    return [float(squared_error(ask(seed).estimates, true)) for seed in seeds]


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


# --- the simulator -------------------------------------------------------------------------------
# Every number is of a process of its own, so that its peak memory is its own too. The peer that is
# always there is a loop over users with numpy, as a first version would be written.


PROTOCOLS: Final = ("L-OSUE", "L-GRR")
LOOPED: Final = 20  # the loop is run for one user in 20


class Cost(NamedTuple):
    """CPU seconds, and MiB at the peak beyond what the imports take."""

    cpu_seconds: float
    peak_mib: float


def measure_simulator(
    statistics: int, reports: int, repeats: int, peers: Peers | None
) -> list[Measurement]:
    """One round at every depth with both protocols, and reports against the peers."""
    rows = []
    for depth, work, devices in (
        ("statistics", as_statistics, statistics),
        ("reports", as_reports, reports),
    ):
        for protocol in PROTOCOLS:
            progress(f"{depth}, {protocol}, {devices:,} devices")
            costs = [alone(partial(work, protocol, devices, seed)) for seed in range(repeats)]
            rows += _depth_rows(f"{depth}, {protocol}", devices, costs)
    rows += [_compared_with_loop(protocol, reports, repeats) for protocol in PROTOCOLS]
    if peers is not None:
        rows += [_compared_with_peer(peers, protocol, reports, repeats) for protocol in PROTOCOLS]
    return rows


def alone(work: Callable[[], float]) -> Cost:
    """The cost of some work in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measured, work).result()


def _measured(work: Callable[[], float]) -> Cost:
    before = peak_memory_mib()
    return Cost(work(), peak_memory_mib() - before)


def _depth_rows(title: str, devices: int, costs: Sequence[Cost]) -> list[Measurement]:
    seconds = [cost.cpu_seconds for cost in costs]
    each_ns = float(np.median(seconds)) / devices * 1e9
    note = f"{devices:,} devices, k = {K}; {each_ns:.3g} ns each"
    return [
        median_of(f"{title}: one round", [s * 1000 for s in seconds], "ms", note=note),
        median_of(f"{title}: memory at the peak", [cost.peak_mib for cost in costs], "MiB"),
    ]


def as_statistics(protocol: str, devices: int, seed: int) -> float:
    """A round as counts alone."""
    asked, held = manifest(K, protocol=protocol), _held(devices)
    begin = time.process_time()
    statistics_depth.as_statistics(asked, (held,), Behaviour(), rounds=1, seed=seed)
    return time.process_time() - begin


def as_reports(protocol: str, devices: int, seed: int) -> float:
    """A round as individual reports, drawn and counted."""
    asked, held = manifest(K, protocol=protocol), _held(devices)
    begin = time.process_time()
    report_depth.as_reports(Fleet(asked, (held,), Behaviour(), seed, rounds=1))
    return time.process_time() - begin


def _held(devices: int) -> Values:
    """The number of devices that hold each value."""
    counts = np.asarray(next(a.counts for a in load("adult").attributes if a.k == K))
    return np.random.default_rng(K).multinomial(devices, counts / counts.sum())


def as_loop(protocol: str, devices: int, seed: int) -> float:
    """The same from user to user: both steps with numpy's generator, one row of bits at a time."""
    calibration = calibrate(protocol, k=K, **BUDGET._asdict())
    values = values_of(devices)
    rng = np.random.default_rng(seed)
    begin = time.process_time()
    counts = np.zeros(calibration.k, dtype=np.int64)
    for value in values:
        counts += loop_report(rng, calibration, value)
    return time.process_time() - begin


def loop_report(rng: np.random.Generator, c: Calibration, value: int) -> Values:
    """The values that one user's report supports."""
    if c.unary:
        probabilities = np.full(c.k, c.q1)
        probabilities[value] = c.p1
        memo = rng.random(c.k) < probabilities
        return (rng.random(c.k) < np.where(memo, c.p2, c.q2)).astype(np.int64)
    answer = value
    for keep in (c.p1, c.p2):
        if rng.random() >= keep:
            other = int(rng.integers(c.k - 1))
            answer = other + (other >= answer)
    support = np.zeros(c.k, dtype=np.int64)
    support[answer] = 1
    return support


def _compared_with_loop(protocol: str, devices: int, repeats: int) -> Measurement:
    few = max(1, devices // LOOPED)
    progress(f"loop over users, {protocol}, {few:,} users")
    ours, loop = in_turns(
        repeats,
        lambda seed: as_reports(protocol, devices, seed) / devices,
        lambda seed: as_loop(protocol, few, seed) / few,
    )
    note = f"for each user: {few:,} of them in the loop, {devices:,} at once"
    return ratio_of(f"reports, {protocol}: a loop over users / ours", loop, ours, note=note)


def _compared_with_peer(peers: Peers, protocol: str, devices: int, repeats: int) -> Measurement:
    progress(f"multi-freq-ldpy, {protocol}, {devices:,} users")
    task = {"oracle": "multi-freq-ldpy", "protocol": protocol, "k": K}
    with tempfile.TemporaryDirectory(prefix="allomfree-inputs-") as scratch:
        bench = Bench(peers, Path(scratch), devices, repeats)
        given = bench.inputs("values", values_of(devices))
        ours, theirs = in_turns(
            repeats,
            lambda seed: as_reports(protocol, devices, seed),
            lambda seed: bench.ask(given, seed, BUDGET, **task).both,
        )

    what = f"reports, {protocol}: multi-freq-ldpy / ours"
    return ratio_of(what, theirs, ours, at_least=SPEED_UP, note=f"{devices:,} users")
