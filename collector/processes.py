"""Child processes, and other processes as Linux shows them in /proc.

A child never outlives its parent, however that ends; it is restarted when it dies, later each time
if it keeps dying, and is asked to stop before it is killed. It inherits no secret of its parent's.

An orphan is signalled only through a `pidfd` that was opened before it was examined, so that a
process id that now belongs to another process is never hit. psutil cannot promise that, and would
add 16 ms and 4 MiB.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from protocol_spec.programs.system import open_private

MARK: Final = "STARTED_BY_ALLOMFREE_COLLECTOR"  # in the environment of a child: our process id

_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
_PR_SET_PDEATHSIG: Final = 1

# What a program needs to find itself, its language, its place and its share of the machine.
_INHERITED: Final = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_INHERITED_KINDS: Final = ("LC_", "PYTHON", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "OPENBLAS_", "OMP_")

log = logging.getLogger("allomfree.child")

# --- children --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a child must have run before it is restarted, and how long it may take to stop.

    The pause doubles with every restart up to the longest one, and starts again from the first
    once a child has run for longer than that.
    """

    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    stop_seconds: float = 10.0


class ChildProcess:
    """A program that runs for as long as its parent wants it to.

    Its output is appended to `log_file`; without one its errors go where the parent's go. What it
    inherits of the parent's environment overrides `environment`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path | None = None,
        pass_fds: Sequence[int] = (),
        timing: Timing | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self._log_file = log_file
        self._environment = environment or {}
        self._pass_fds = pass_fds
        self._timing = timing or Timing()
        self.stop_seconds = self._timing.stop_seconds
        self._pause_seconds = self._timing.first_pause_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it. If the system refuses (no memory, no such file), `supervise` tries again."""
        self._started, self._process = time.monotonic(), None
        try:
            if self._log_file is None:
                self._process = self._spawn(None)
            else:
                descriptor = open_private(self._log_file, os.O_WRONLY | os.O_APPEND)
                with os.fdopen(descriptor, "ab") as out:
                    self._process = self._spawn(out)
        except OSError as error:
            log.warning("%s cannot be started: %s", self.name, error.strerror)

    def _spawn(self, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own programs, with our own arguments
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if output is None else output,
            stderr=output,
            pass_fds=self._pass_fds,  # and no other descriptor of ours
            env={**self._environment, **without_secrets(os.environ), MARK: str(os.getpid())},
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - the collector has one thread
        )

    def supervise(self) -> bool:
        """Restart it if it has ended or never started, after a pause; True if it was restarted."""
        ran_seconds = time.monotonic() - self._started
        if self.running or ran_seconds < self._pause_seconds:
            return False
        timing = self._timing
        doubled = min(self._pause_seconds * 2, timing.longest_pause_seconds)
        lasted = ran_seconds > timing.longest_pause_seconds
        self._pause_seconds = timing.first_pause_seconds if lasted else doubled
        if self._process is not None:
            log.warning("%s ended (code %s); restarting", self.name, self._process.returncode)
        self.start()
        return True

    def stop(self) -> None:
        """Terminate it, and kill it if that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What a child inherits (P6). Settings come as arguments, so it needs neither passwords nor
    the service manager's sockets and credentials."""
    return {
        name: value
        for name, value in environment.items()
        if name in _INHERITED or name.startswith(_INHERITED_KINDS)
    }


def _end_with_parent() -> None:
    """Runs in the child before its program: it ends when its parent does, even by kill -9."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


# --- other processes -------------------------------------------------------------------------


def listener_of(port: int, pid: int | None = None) -> int | None:
    """The process that listens on a port of this machine, as far as we may see it; with a `pid`,
    only whether it is that one."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    candidates = _pids() if pid is None else iter([pid])
    return next((found for found in candidates if sockets & _open_files(found)), None)


def name_of(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return "?"


def orphans(command: Sequence[str]) -> list[int]:
    """Processes that a collector of this user started with this very command and that have
    outlived it: the parent recorded in their environment is not their parent any more."""
    return [pid for pid in _pids() if _is_orphan(pid, command)]


def signal_orphan(pid: int, command: Sequence[str], number: int) -> None:
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
        state, parent = _stat_fields(pid)[:2]
        return bool(marks) and marks[0] != f"{MARK}={parent}".encode() and state not in ("Z", "X")
    return False


def _stat_fields(pid: int) -> list[str]:
    """State, parent and so on: the fields after the name, which may contain anything."""
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
