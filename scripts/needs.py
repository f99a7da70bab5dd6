"""Imported first, so that a library that is not installed is one line that says what to type, and
so that a checkout need not be installed."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

_ROOT = Path(__file__).resolve().parent.parent
_usual = sys.excepthook


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, ModuleNotFoundError):
        _usual(kind, error, trace)
        return
    pip = f"{shlex.quote(sys.executable)} -m pip install --editable '{_ROOT}[dev]'"
    what = f"{Path(sys.argv[0]).name} needs {error.name}, which is not installed"
    print(f"error: {what}; nothing was done. Run: {pip}", file=sys.stderr)


if find_spec("protocol_spec") is None:
    sys.path.insert(0, str(_ROOT))
sys.excepthook = _explain
