"""A program under a wall clock that can be set."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from faults.clock import moved, set_clock
from stage.programs import environment


def test_the_clock_is_wrong_by_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    now = moved(file, lambda: 1000.0)
    assert now() == 1000.0
    set_clock(file, -60.0)
    assert now() == 940.0


def test_a_program_sees_it_and_its_own_words(tmp_path: Path) -> None:
    file, program = tmp_path / "clock", tmp_path / "program"
    set_clock(file, 86_400.0)
    program.write_text("import sys, time; print(time.time(), *sys.argv[1:])")
    done = subprocess.run(
        [sys.executable, "-m", "faults.clock", file, program, "a", "b"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    shown, *words = done.stdout.split()
    assert words == ["a", "b"]
    assert 86_000 < float(shown) - time.time() < 86_401
