"""The same work by multi-freq-ldpy and pure-ldp, in turns, on the same inputs; and the simulator's
cost at each depth. Speed is CPU time, which other programs on the machine disturb least; a ratio
above 1 means that ours takes less."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.report import Measurement, in_turns, median_of, progress, ratio_of
from benchmarks.workload import manifest
from collector.store.common import count_bodies
from protocol_spec import ONE_TIME, Calibration, Randomiser, as_drawn, calibrate, calibrate_once
from protocol_spec.estimation import Array, estimate
from simulation import campaigns
from simulation.devices import BulkRandomiser, Fleet, count
from simulation.population import Behaviour, Dataset, load
from testbed.processes import TestbedError, peak_memory_mib

Values = npt.NDArray[np.int64]


class Budget(NamedTuple):
    """Privacy loss of a device's values over its life, and of one report."""

    eps_inf: float
    eps_1: float

    def __str__(self) -> str:
        return f"eps_inf {self.eps_inf:g}, eps_1 {self.eps_1:g}"


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


class PeerFailed(TestbedError):
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


class Timed(NamedTuple):
    """CPU seconds to randomise and aggregate, and the estimates, one array an attribute."""

    seconds: float
    estimates: Sequence[Array]


@dataclass(frozen=True, slots=True)
class Bench:
    """The peers, where inputs are written for them, and how often everything is repeated."""

    peers: Peers
    scratch: Path
    repeats: int

    def ask(self, values: Path, seed: int, budget: Budget, **task: Any) -> Timed:
        done = self.peers.ask(values=str(values), seed=seed, **budget._asdict(), **task)
        return Timed(done["seconds"], done["frequencies"])

    def inputs(self, name: str, values: Values) -> Path:
        """The same values for the peers, as a file."""
        path = self.scratch / f"{name}.npy"
        np.save(path, values)
        return path

    def population(self, data: Dataset) -> Path:
        return self.inputs("users", users_of(data))


def users_of(data: Dataset) -> Values:
    """A user a row, an attribute a column, with exactly the data set's counts in each column."""
    rng = np.random.default_rng(data.n)
    columns = [rng.permutation(np.repeat(np.arange(a.k), a.counts)) for a in data.attributes]
    users: Values = np.stack(columns, axis=1)
    return users


# --- our side ------------------------------------------------------------------------------------
# Both kinds of round draw a memo and then a report from it for every user, as the peers do; of a
# one-time protocol the memo is the report.

K: Final = 41  # native-country, the attribute of Adult with the most values
BUDGET: Final = Budget(2.0, 0.6)
SPEED_UP: Final = 20.0  # what simulating a round must gain over multi-freq-ldpy
FEWER: Final = 20  # a device's own randomiser and the loop are run for one user in 20
PROTOCOLS: Final = ("L-OSUE", "L-GRR")
Round = Callable[[Calibration, Values, int], Timed]


def simulated_round(calibration: Calibration, values: Values, seed: int) -> Timed:
    """Individual reports of all users at once, from a seeded generator."""
    rng = np.random.Generator(np.random.SFC64(seed))  # the simulator's own choice
    begin = time.process_time()
    bulk = BulkRandomiser(calibration)
    memos = bulk.memoize(rng, values)
    reports = memos if calibration.protocol in ONE_TIME else bulk.report(rng, memos)
    raw = estimate(count(bulk.format, reports), len(reports), as_drawn(calibration)).raw
    return Timed(time.process_time() - begin, [raw])


def device_round(calibration: Calibration, values: Values, _seed: int) -> Timed:
    """Each user's device with the system's random bytes, and the collector's counting."""
    indices = values.tolist()
    begin = time.process_time()
    device = Randomiser(calibration, os.urandom)
    memos = [device.memoize(index) for index in indices]
    reports = memos if calibration.protocol in ONE_TIME else [device.report(m) for m in memos]
    counts = count_bodies(reports, device.format)
    raw = estimate(counts, len(reports), as_drawn(calibration)).raw
    return Timed(time.process_time() - begin, [raw])


KINDS: Final[dict[str, Round]] = {
    "simulator": simulated_round,
    "devices and collector": device_round,
}


def our_campaign(a_round: Round, users: Values, sizes: Sequence[int], seed: int) -> Timed:
    """ALLOMFREE over several attributes: every user draws one of them and reports its value."""
    begin = time.process_time()
    drawn = np.random.default_rng(seed).integers(0, len(sizes), len(users))
    groups = [users[drawn == a, a] for a in range(len(sizes))]
    choices = [calibrate("ALLOMFREE", k=k, **BUDGET._asdict()) for k in sizes]
    sampling = time.process_time() - begin
    parts = [a_round(c, held, seed + 1 + a) for a, (c, held) in enumerate(zip(choices, groups))]
    return Timed(sampling + sum(p.seconds for p in parts), [p.estimates[0] for p in parts])


def values_of(n: int) -> Values:
    """n users with native countries as frequent as in Adult: the same on every call."""
    counts = next(a.counts for a in load("adult").attributes if a.k == K)
    drawn: Values = np.random.default_rng(41).choice(K, size=n, p=np.asarray(counts) / sum(counts))
    return drawn


# --- speed against the peers ---------------------------------------------------------------------


def measure_speed(bench: Bench, devices: int) -> list[Measurement]:
    """One round of one attribute with each of the two protocols that ALLOMFREE chooses from;
    pure-ldp's one-time protocols at eps_1, on fewer users, because it takes much longer for each;
    and a whole campaign."""
    everyone, rows = values_of(devices), list[Measurement]()
    for protocol in PROTOCOLS:
        ours = calibrate(protocol, k=K, **BUDGET._asdict())
        rows += _round(bench, ours, everyone, PEERS[0], protocol)
    ours = calibrate("L-OSUE", k=K, **BUDGET._asdict())
    rows += _round(bench, ours, everyone, PEERS[0], "L-OSUE", compiled=True)
    for protocol in ("OUE", "GRR"):
        ours = calibrate_once(protocol, k=K, epsilon=BUDGET.eps_1)
        rows += _round(bench, ours, everyone[: devices // 5], PEERS[1], protocol)
    data = load("adult")
    users, sizes = users_of(data), [a.k for a in data.attributes]
    given = bench.population(data)
    for who, kind in KINDS.items():
        title = f"{data.title}, whole campaign: {PEERS[0]} / {who}"
        task = {"oracle": "campaign", "sizes": sizes}
        mine = partial(our_campaign, kind, users, sizes)
        rows.append(_compared(bench, title, mine, given, len(users), task))
    return rows


def _round(
    bench: Bench, ours: Calibration, values: Values, peer: str, protocol: str, **task: Any
) -> Iterator[Measurement]:
    how = " in a compiled loop" if task else ""
    for who, kind in KINDS.items():
        simulated = kind is simulated_round
        if task and not simulated:
            continue
        some = values if simulated else values[: max(1, len(values) // FEWER)]
        asked = {"oracle": peer, "protocol": protocol, "k": K, **task}
        least = SPEED_UP if simulated and peer == PEERS[0] and not task else None
        yield _compared(
            bench, f"{protocol}: {peer}{how} / {who}", partial(kind, ours, some),
            bench.inputs("values", some), len(some), asked, least,
        )  # fmt: skip


def _compared(
    bench: Bench,
    title: str,
    ours: Callable[[int], Timed],
    given: Path,
    users: int,
    task: dict[str, Any],
    at_least: float | None = None,
) -> Measurement:
    """Their CPU time over ours, in turns, with what one user costs each side."""
    progress(f"{title}, {users:,} users")
    ours(0)  # a warm-up: the peers have one too
    pairs = in_turns(bench.repeats, ours, lambda repeat: bench.ask(given, repeat, BUDGET, **task))
    mine, theirs = ([timed.seconds for timed in side] for side in pairs)
    each = " / ".join(f"{np.median(side) / users * 1e6:.3g}" for side in (theirs, mine))
    note = f"{users:,} users; {each} µs each"
    return ratio_of(title, theirs, mine, note=note, at_least=at_least)


# --- the simulator -------------------------------------------------------------------------------
# Every number is of a process of its own, so that its peak memory is its own too. What it is
# compared with is a loop over users with numpy, as a first version would be written.


def measure_simulator(statistics: int, reports: int, repeats: int) -> list[Measurement]:
    """One round at both depths with both protocols, and reports against a loop."""
    rows, few = [], max(1, reports // FEWER)
    for protocol in PROTOCOLS:
        for depth, devices in (("statistics", statistics), ("reports", reports)):
            progress(f"{depth}, {protocol}, {devices:,} devices")
            works = [partial(simulate, depth, protocol, devices, seed) for seed in range(repeats)]
            seconds, memory = zip(*map(_alone, works))
            note = f"{devices:,} devices, k = {K}; {np.median(seconds) / devices * 1e9:.3g} ns each"
            of = f"{depth}, {protocol}"
            rows += [
                median_of("one round", [s * 1000 for s in seconds], "ms", note=note, of=of),
                median_of("memory at the peak", memory, "MiB", of=of),
            ]
    for protocol in PROTOCOLS:
        ours, loop = in_turns(
            repeats,
            lambda seed, p=protocol: simulate("reports", p, reports, seed) / reports,  # type: ignore[misc]
            lambda seed, p=protocol: _loop(p, few, seed) / few,  # type: ignore[misc]
        )
        note = f"for each user: {few:,} of them in the loop, {reports:,} at once"
        rows.append(ratio_of(f"{protocol}: a loop over users / reports", loop, ours, note=note))
    return rows


def _alone(work: Callable[[], float]) -> tuple[float, float]:
    """CPU seconds of some work in a fresh process, and MiB at the peak beyond its imports."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measured, work).result()


def _measured(work: Callable[[], float]) -> tuple[float, float]:
    before = peak_memory_mib()
    return work(), peak_memory_mib() - before


def simulate(depth: str, protocol: str, devices: int, seed: int) -> float:
    """CPU seconds of a round: as counts alone, or as individual reports, drawn and counted."""
    asked = manifest(K, protocol=protocol)
    held = np.bincount(values_of(1 << 16), minlength=K) * devices >> 16
    begin = time.process_time()
    if depth == "statistics":
        campaigns.as_statistics(asked, (held,), Behaviour(), rounds=1, seed=seed)
    else:
        campaigns.as_reports(Fleet(asked, (held,), Behaviour(), seed, rounds=1))
    return time.process_time() - begin


def _loop(protocol: str, devices: int, seed: int) -> float:
    """The same from user to user: both steps with numpy's generator, one row of bits at a time."""
    c = calibrate(protocol, k=K, **BUDGET._asdict())
    values, rng = values_of(devices), np.random.default_rng(seed)
    begin = time.process_time()
    counts = np.zeros(c.k, dtype=np.int64)
    for value in values:
        if c.unary:
            probabilities = np.full(c.k, c.q1)
            probabilities[value] = c.p1
            memo = rng.random(c.k) < probabilities
            counts += rng.random(c.k) < np.where(memo, c.p2, c.q2)
            continue
        answer = value
        for keep in (c.p1, c.p2):
            if rng.random() >= keep:
                other = int(rng.integers(c.k - 1))
                answer = other + (other >= answer)
        counts[answer] += 1
    return time.process_time() - begin
