"""The paper's results again, from a checkout: `allomfree-sim reproduce-paper`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("protocol_spec") is None:  # a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from paper.cli import main

if __name__ == "__main__":
    main()
