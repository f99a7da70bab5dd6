"""How much memory a process uses, or has used at most."""

from __future__ import annotations

from pathlib import Path


def peak_memory_mib() -> float:
    """The largest resident size so far. Not `ru_maxrss`: that begins with the size of the process
    that started this one, so a small child of a large parent would seem as large."""
    return _kibibytes("self", "VmHWM") / 1024


def resident_bytes(pid: int) -> int:
    """What another process has in memory now."""
    return _kibibytes(str(pid), "VmRSS") * 1024


def _kibibytes(process: str, field: str) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])
