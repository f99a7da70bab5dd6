"""Simulate a fleet, from a checkout: `allomfree-sim`. See docs/simulate.md."""

from __future__ import annotations

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
from allomfree_sim import main

if __name__ == "__main__":
    main()
