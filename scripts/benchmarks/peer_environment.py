"""A throw-away environment with the peers in it, and the driver that runs there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

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
    """The driver in a process of its own. Ask, and it answers; it ends with the context."""

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
        """The answer to one task, or PeerFailed with what the driver said."""
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
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise PeerFailed(f"a peer could not do {task}: {told['error']}")
        return told

    def seconds(self, **task: Any) -> float:
        """CPU seconds of both halves of one task."""
        told = self.ask(**task)
        return float(told["randomise"] + told["aggregate"])

    def versions(self) -> dict[str, str]:
        """What is compared: the peers, and what their speed comes from."""
        return self.ask(names=[*PEERS, "numpy", "numba"])

    def close(self) -> None:
        """End the driver and wait for it."""
        self._process.communicate()


@contextmanager
def peers(python: Path | None = None) -> Iterator[Peers]:
    """The peers in a temporary environment, or behind an interpreter that has them already."""
    with tempfile.TemporaryDirectory(prefix="allomfree-peers-") as scratch:
        driver = Peers(python or install(Path(scratch) / "venv"))
        try:
            yield driver
        finally:
            driver.close()


def install(directory: Path, pins: tuple[str, ...] = PINS) -> Path:
    """Make the environment, with the pip of this one; returns its interpreter."""
    print(f"installing {' and '.join(PEERS)} into a temporary environment", file=sys.stderr)
    python = directory / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--without-pip", str(directory)])
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check")
    _run([*pip, "install", "--quiet", *pins])
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise PeerFailed(
            f"the peers could not be installed, so nothing was compared:\n{reason}\nThey come "
            "from the package index that pip is set up for; check that it can be reached, or name "
            "an interpreter that has them with --peer-python"
        )
