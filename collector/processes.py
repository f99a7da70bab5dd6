"""Other processes, as Linux shows them in /proc: who listens where, and what we left behind.

A process is signalled only through a descriptor of it (`pidfd`) that was opened before it was
looked at, so that a number that now belongs to somebody else is never hit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "STARTED_BY_ALLOMFREE_COLLECTOR"  # in the environment of a child: our process id

_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"


def listener_of(port: int, pid: int | None = None) -> int | None:
    """The process that listens on a port of this machine, as far as we may see it; with a `pid`,
    only whether it is that one."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    candidates = _pids() if pid is None else iter([pid])
    return next((found for found in candidates if sockets & _open_files(found)), None)


def name_of(pid: int) -> str:
    """A process's short name."""
    with suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return "?"


def is_stopped(pid: int) -> bool:
    """Whether somebody has paused it (SIGSTOP)."""
    with suppress(OSError):
        return _fields(pid)[0] in ("T", "t")
    return False


def left_behind(command: Sequence[str]) -> list[int]:
    """Processes that a collector of this user started with this very command, and that have
    outlived it: their own account of who started them is not their parent any more."""
    return [pid for pid in _pids() if _is_orphan(pid, command)]


def end_left_behind(pid: int, command: Sequence[str], number: int) -> None:
    """Send a signal to such a process, and to no other."""
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if _is_orphan(pid, command):
                signal.pidfd_send_signal(descriptor, number)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)  # a paused one cannot end
        finally:
            os.close(descriptor)


def _is_orphan(pid: int, command: Sequence[str]) -> bool:
    with suppress(OSError):
        place = _PROC / str(pid)
        words = (place / "cmdline").read_bytes().split(b"\0")[:-1]
        if words != [os.fsencode(word) for word in command] or place.stat().st_uid != os.geteuid():
            return False
        variables = (place / "environ").read_bytes().split(b"\0")
        marks = [entry for entry in variables if entry.startswith(f"{MARK}=".encode())]
        state, parent = _fields(pid)[:2]
        return bool(marks) and marks[0] != f"{MARK}={parent}".encode() and state not in ("Z", "X")
    return False


def _fields(pid: int) -> list[str]:
    """State, parent and so on: what stands behind the name, which may hold anything."""
    text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):  # of another user, or gone
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                found.add(str(entry.readlink()))
    return found


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
