"""Where `allomfree-collector` starts, also as `python -m collector`."""

from __future__ import annotations

import os

# Counts are added up, no matrices multiplied: a pool of threads for that, which numpy would start,
# is a twelfth of the processor time of a short command.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collector.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
