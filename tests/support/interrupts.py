"""Programs that tests start hear Ctrl-C, also where the tests run in the background."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell lets what it starts with `&` ignore SIGINT, and every child inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
