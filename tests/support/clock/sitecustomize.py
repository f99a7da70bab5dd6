"""A clock that stands still, for programs that a test starts: time.time() is $TEST_CLOCK.

Python imports this module before the program when its directory is on PYTHONPATH. What a program
measures with the monotonic clock (timeouts, pauses) goes on as ever.
"""

from __future__ import annotations

import os
import time

if "TEST_CLOCK" in os.environ:
    _NOW = float(os.environ["TEST_CLOCK"])
    time.time = lambda: _NOW
    time.time_ns = lambda: int(_NOW * 1e9)
