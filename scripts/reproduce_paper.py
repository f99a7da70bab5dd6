"""The paper's results, from a checkout: `allomfree-sim reproduce-paper`."""

from __future__ import annotations

import sys

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
from allomfree_sim import main

if __name__ == "__main__":
    sys.argv.insert(1, "reproduce-paper")
    main()
