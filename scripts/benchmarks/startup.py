"""What it costs to start a short command: CPU time over that of Python doing nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks.campaign import manifest
from benchmarks.measurements import Measurement, median_of, ratio_of
from collector.data_dir import open_store
from collector.health import Heartbeat, Status
from edge_client import EdgeClient
from testbed import processes

ROOT: Final = Path(__file__).resolve().parents[2]
NOTHING: Final = ("-c", "pass")
LIMIT: Final = 10.0  # of what only tells of itself, and of what monitors ask every few seconds

Words = tuple[str, ...]


def measure(repeat: int = 9) -> list[Measurement]:
    """Every command in turns with Python doing nothing, in a temporary environment."""
    with tempfile.TemporaryDirectory(prefix="allomfree-benchmark-") as name:
        directory = Path(name)
        python, commands = _environment(directory), _commands(directory)
        for words in (NOTHING, *commands.values()):
            _cpu_ms(python, words)  # compiled now, as installed packages are
        turns = [
            {name: _cpu_ms(python, words) for name, words in {"": NOTHING, **commands}.items()}
            for _ in range(repeat)
        ]
    columns = {name: [turn[name] for turn in turns] for name in turns[0]}
    bare = columns.pop("")
    return [
        *(_row(name, spent, bare) for name, spent in columns.items()),
        median_of("python -c pass", bare, "ms"),
    ]


def _row(name: str, spent: list[float], bare: list[float]) -> Measurement:
    limit = None if name.endswith("status") else LIMIT
    return ratio_of(name, spent, bare, limit=limit, note=f"{len(spent)} starts")


def _environment(directory: Path) -> Path:
    """A Python that finds the checkout and its libraries by their paths alone.

    An editable install runs code at every start of Python, which would make everything else look
    cheap beside it.
    """
    venv.create(directory / "venv", symlinks=True)
    paths = dict.fromkeys([str(ROOT), *(sysconfig.get_path(p) for p in ("purelib", "platlib"))])
    inside = sysconfig.get_path("purelib", "venv", {"base": str(directory / "venv")})
    (Path(inside) / "checkout.pth").write_text("\n".join(paths), encoding="utf-8")
    return directory / "venv" / "bin" / "python"


def _commands(directory: Path) -> dict[str, Words]:
    """What is typed, on a small campaign with a service, and on a device that joined none."""
    data, state = directory / "data", directory / "state"
    with closing(open_store(data)) as store:
        store.open_campaign(manifest(4), int(time.time()), b"")
    Heartbeat(data).beat(Status(connected=True, trouble=""))
    EdgeClient(state).close()
    settings = ("--config", os.devnull)
    collector, edge = ("-m", "collector"), ("-m", "edge_client")
    return {
        "allomfree-collector --help": (*collector, "--help"),
        "allomfree-collector --version": (*collector, "--version"),
        "allomfree-collector health": (*collector, "health", *settings, "--data-dir", str(data)),
        "allomfree-collector status": (*collector, "status", *settings, "--data-dir", str(data)),
        "allomfree-edge --help": (*edge, "--help"),
        "allomfree-edge --version": (*edge, "--version"),
        "allomfree-edge status": (*edge, "status", *settings, "--state-dir", str(state)),
    }


def _cpu_ms(python: Path, words: Words) -> float:
    """CPU time of one process, from its start to its end."""
    variables = {k: v for k, v in processes.environment().items() if not k.startswith("PYTHON")}
    compiled = sys.pycache_prefix or str(python.parent / "compiled")  # never in the checkout
    variables["PYTHONPYCACHEPREFIX"] = compiled
    child = subprocess.Popen(
        [str(python), *words],
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=python.parent,
    )
    with child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode and child.stderr:
            raise RuntimeError(f"{' '.join(words)}: {child.stderr.read().decode()}")
    return (used.ru_utime + used.ru_stime) * 1000
