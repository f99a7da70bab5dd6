"""The paper's results, from a checkout: `allomfree-sim reproduce-paper`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("protocol_spec") is None:  # a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from allomfree_sim import main

if __name__ == "__main__":
    sys.argv.insert(1, "reproduce-paper")
    main()
