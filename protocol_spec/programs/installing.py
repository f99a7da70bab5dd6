"""How to add what is not installed: the package is not on any index, only its source is there."""

from __future__ import annotations

import shlex
import sys


def install(extra: str) -> str:
    """The command that adds an extra to the environment of this program."""
    return f"{shlex.quote(sys.executable)} -m pip install '.[{extra}]', in a copy of the source"
