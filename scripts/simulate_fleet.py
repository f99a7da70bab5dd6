"""Simulate a fleet, from a checkout: `allomfree-sim`. See docs/simulate.md."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("protocol_spec") is None:  # a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from allomfree_sim import main

if __name__ == "__main__":
    main()
