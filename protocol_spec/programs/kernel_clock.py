"""What the kernel knows of time: since when the machine runs, and whether something, NTP as a rule,
keeps its clock right.

The latter is asked by `adjtimex`, for which Python needs `ctypes`: half a megabyte, which an agent
would carry for ever. So it asks in a child process: this very file, run by itself.
"""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["synchronised", "synchronised_says_child", "this_boot"]

_TIME_ERROR: Final = 5  # what adjtimex answers for a clock that nothing keeps right
_TIMEX_BYTES: Final = 512  # more than any system's struct timex
_CODES: Final = {True: 10, False: 11, None: 12}  # exit statuses that nothing else ends with


def this_boot() -> str:
    """Names the time since the machine was started; empty where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""


def synchronised() -> bool | None:
    """What the kernel says; None if it cannot be told. Asking changes nothing."""
    try:
        import ctypes  # noqa: PLC0415 - only where it is asked for

        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    except (ImportError, OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def synchronised_says_child() -> bool | None:
    """The same, asked by a process that is gone afterwards."""
    words = [sys.executable, "-I", "-S", __file__]
    try:
        child = os.posix_spawn(sys.executable, words, {})
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except (OSError, AttributeError, TypeError):
        return None
    return {code: answer for answer, code in _CODES.items()}.get(status)


if __name__ == "__main__":
    sys.exit(_CODES[synchronised()])
