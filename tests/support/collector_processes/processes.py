"""The collector as its operator runs it: a command and its log."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.edge_processes import AgentProcess, run_command

COLLECTOR = (sys.executable, "-m", "collector")


def collector(*words: str | Path, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return run_command([*COLLECTOR, *map(str, words)], timeout)


def facts(*words: str | Path) -> Any:
    """What a command says with --json."""
    done = collector(*words, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


class CollectorProcess(AgentProcess):
    """`allomfree-collector run`, its log collected line by line. Ended by its own process id."""

    def __init__(
        self, data: Path, *flags: str, extra_environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(data, extra_environment=extra_environment)
        quietly = ("run", "--quiet", "--listen", "off", "--data-dir", str(data))
        self.command = [*COLLECTOR, *quietly, *flags]


def resident(pid: int) -> float:
    """The most memory a process ever had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
