"""The command exists in every install; without its libraries it says what to install."""

from __future__ import annotations

import os
import subprocess
import sys

WITHOUT = """
import sys
sys.modules["numpy"] = None  # as if it were not installed
from collector.__main__ import main
sys.argv = ["allomfree-collector", "status"]
main()
"""


def test_a_missing_library_is_one_line_and_exit_2() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "pip install '.[collector]', in a copy of the source" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_overview_needs_none_of_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("status", "--help")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  status " in done.stdout


def test_with_them_it_is_the_command_line() -> None:
    program = WITHOUT.replace('sys.modules["numpy"] = None', "pass").replace("status", "--help")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "allomfree-collector plan" in done.stdout


def test_numpy_starts_no_threads() -> None:
    """Nobody multiplies matrices here; whoever wants the threads says so in the environment."""
    code = "import collector.__main__, numpy, os; print(len(os.listdir('/proc/self/task')))"
    usual = {name: text for name, text in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=usual, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
