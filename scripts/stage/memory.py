"""How much memory this process has used at most."""

from __future__ import annotations

from pathlib import Path


def peak_memory_mib() -> float:
    """The largest resident size so far. Not `ru_maxrss`: that begins with the size of the process
    that started this one, so a small child of a large parent would seem as large."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024
