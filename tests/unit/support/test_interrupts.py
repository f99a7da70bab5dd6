"""What tests start hears Ctrl-C, however the tests were started."""

from __future__ import annotations

import subprocess
import sys

from stage.programs import environment
from tests.support.places import ROOT

IGNORING = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from tests.support.interrupts import pytest_configure
pytest_configure()
asked = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
subprocess.run([sys.executable, "-c", asked], check=True)
"""


def test_a_child_of_tests_in_the_background_hears_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IGNORING],
        capture_output=True, text=True, check=True, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert done.stdout == "True\n"
