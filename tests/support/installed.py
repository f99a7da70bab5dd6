"""A checkout's two programs, run as its users run them, at a moment of the test's choosing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.places import ROOT

CLOCK = Path(__file__).parent / "clock"
PATIENCE = 120.0


def entry_point(checkout: Path, program: str) -> str:
    """Code that starts a program, whatever module it lives in."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = project["project"]["scripts"][program].partition(":")
    return f"import sys; from {module} import {function}; sys.exit({function}())"


@dataclass(frozen=True, slots=True)
class Checkout:
    """The two programs of one checkout, away from this machine's configuration."""

    home: Path
    root: Path = ROOT
    python: str = sys.executable

    def command(self, program: str, *words: object) -> list[str]:
        code = entry_point(self.root, f"allomfree-{program}")
        return [self.python, "-c", code, *map(str, words)]

    def environment(self, clock: float) -> dict[str, str]:
        foreign = ("ALLOMFREE_", "XDG_", "STATE_DIRECTORY", "NOTIFY_SOCKET")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        path = f"{CLOCK}:{self.root}"
        return kept | {"HOME": str(self.home), "PYTHONPATH": path, "TEST_CLOCK": str(clock)}

    def run(self, program: str, *words: object, clock: float, code: int | None = 0) -> str:
        """Run to its end; what it printed."""
        done = subprocess.run(
            self.command(program, *words),
            env=self.environment(clock),
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, program: str, *words: object, clock: float) -> Any:
        return json.loads(self.run(program, *words, "--json", clock=clock))

    @contextmanager
    def running(self, program: str, *words: object, clock: float) -> Iterator[Path]:
        """Run until the block ends, then stop it politely; yields where its output goes."""
        log = self.home / f"{program}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                self.command(program, *words),
                env=self.environment(clock),
                cwd=self.home,
                stdout=file,
                stderr=file,
            )
        try:
            yield log
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def options(help_text: str) -> list[str]:
    """The options that a command's help lists."""
    return sorted(set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", help_text, re.M)))


def commands(help_text: str) -> list[str]:
    """The commands that a program's help lists."""
    listed = help_text.partition("Commands:\n")[2]
    return re.findall(r"^  ([a-z-]+)(?: |$)", listed, re.M)
