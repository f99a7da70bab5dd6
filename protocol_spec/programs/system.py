"""What both programs need of the operating system: private, durable files, locks between processes,
the kernel's clock, the service manager, and random names.

Functions for files raise plain `OSError`; each program says in its own words what that means.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final


def make_private_directory(directory: Path) -> None:
    """Create a directory, with its parents, that only its owner can enter; keep one that exists."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
        directory.chmod(0o700)  # the umask may have taken more than it should


def exposed_mode(path: Path) -> int | None:
    """The permissions of a file or directory that other users can access; None if they cannot."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return mode if mode & 0o077 else None


def open_private(path: Path, flags: int) -> int:
    """Open a file, or create it for its owner alone, whatever the umask is."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, flags | os.O_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    return descriptor


def write_durably(file: Path, content: str | bytes) -> None:
    """Replace a file in one step: after a crash or power cut it holds the old content or the new.

    The file is synced before it gets its name, and the directory after that, because a rename is
    a change of the directory.
    """
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        _write_synced(temporary, content)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(file.parent)


def create_durably(file: Path, content: str | bytes) -> None:
    """Create a file in one step; keep the one that exists, also if it was created a moment ago."""
    temporary = file.with_name(f".{file.name}.{os.urandom(8).hex()}")
    try:
        _write_synced(temporary, content)
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(file.parent)


def _write_synced(file: Path, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        os.fchmod(descriptor, 0o600)  # the umask may have taken more than it should
        out.write(data)
        out.flush()
        os.fsync(descriptor)


def overwrite(path: Path, record: bytes) -> None:
    """Overwrite the beginning of a private file in place, which a full disk cannot refuse.

    For notes that are written often and may be lost, such as a heartbeat.
    """
    descriptor = open_private(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, record, 0)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make names created or replaced in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Locks between processes: held by an open file, released by the end of the process.


def try_lock(path: Path) -> int | None:
    """Lock a file without waiting: the descriptor that holds the lock, or None if it is taken.

    The lock ends when the descriptor is closed or its process ends, however it ends.
    """
    descriptor = open_private(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    with suppress(OSError):  # only a note for people: a full disk must not matter
        os.pwrite(descriptor, f"{os.getpid():<19}\n".encode(), 0)
    return descriptor


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, after waiting for whoever holds it."""
    descriptor = open_private(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def holder(path: Path) -> str:
    """The process that took a lock last, as it noted itself; `unknown` if it did not."""
    with suppress(OSError):
        return path.read_bytes()[:20].decode(errors="replace").strip() or "unknown"
    return "unknown"


# --- the kernel's clock ---------------------------------------------------------------

_TIME_ERROR: Final = 5  # what adjtimex returns for a clock that nothing synchronises
_TIMEX_BYTES: Final = 512  # more than any system's struct timex
_OFFSET: Final = 10  # of the child's exit status, so that no other failure looks like an answer
_CHILD: Final = (
    "import ctypes; raise SystemExit("
    f"{_OFFSET} + ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer({_TIMEX_BYTES})))"
)


def this_boot() -> str:
    """The kernel's identifier of this boot; empty where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""


def synchronised() -> bool | None:
    """Whether something, usually NTP, synchronises the clock; None if that is unknown."""
    try:
        import ctypes  # noqa: PLC0415 - only where needed

        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    except (ImportError, OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def synchronised_by_child() -> bool | None:
    """The same from a child process: `ctypes` would cost an agent half a megabyte for ever."""
    try:
        child = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", _CHILD], {})
        state = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - _OFFSET
    except (OSError, AttributeError, TypeError):
        return None
    return state != _TIME_ERROR if 0 <= state <= _TIME_ERROR else None


# --- Messages to the service manager, if there is one.


def notify_systemd(message: str) -> None:
    """Send systemd our state, if it started us (`Type=notify`); otherwise do nothing.

    Each line is a field of its own, so foreign text in one must not hold a line end.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall(message.encode())


def random_client_id(prefix: str) -> str:
    """A session's name at the broker: whoever could guess it could take the session over."""
    return f"{prefix}-{os.urandom(8).hex()}"
