"""Whether something keeps the clock right: the kernel's answer, asked here or by a child."""

from __future__ import annotations

import subprocess
import sys

from protocol_spec.programs.system import synchronised, synchronised_by_child


def test_a_child_says_the_same() -> None:
    assert synchronised() in (True, False, None)
    assert synchronised_by_child() is synchronised()


def test_asking_by_a_child_leaves_nothing_behind() -> None:
    """An agent asks, and is to stay small (F8)."""
    code = (
        "import sys; from protocol_spec.programs.system import *; "
        "synchronised_by_child(); print('ctypes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
