"""Where a shared store is: the address of a PostgreSQL database, without its password.

Off this machine the server is verified (`sslmode=verify-full`) unless the address names another
`sslmode`. A password is never part of an address: others could read it in the list of processes.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol_spec.programs.output import shown
from protocol_spec.programs.settings import SettingsError
from protocol_spec.programs.system import exposed_mode

SCHEMES: Final = ("postgresql", "postgres")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
# Seconds. A server that vanished is noticed well before others stop waiting for this worker.
PATIENCE: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",  # milliseconds
}


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A `postgresql://` address, checked; its text is safe to show."""

    url: str
    password_file: Path | None = None

    def __post_init__(self) -> None:
        parts = _split(self.url)
        asked = dict(urllib.parse.parse_qsl(parts.query))
        if parts.scheme not in SCHEMES:
            raise ValueError("use postgresql://USER@HOST/DATABASE")
        if parts.password is not None or {"password", "passfile"} & asked.keys():
            raise ValueError(
                "a password must not be in the address, where other users of this machine can see "
                "it; put it into a file for --store-password-file, or use PGPASSFILE"
            )
        if not parts.path.strip("/") and "dbname" not in asked:
            raise ValueError("name the database, as in postgresql://USER@HOST/DATABASE")

    def __str__(self) -> str:
        parts = _split(self.url)
        return f"postgresql://{parts.netloc}{parts.path}"

    def options(self) -> dict[str, str]:
        """What libpq is told, the password included."""
        asked = dict(urllib.parse.parse_qsl(_split(self.url).query))
        found = dict(PATIENCE)
        for name in PATIENCE.keys() & asked.keys():
            del found[name]
        if "sslmode" not in asked and not self.is_local:
            found["sslmode"] = "verify-full"
            if "sslrootcert" not in asked:
                found["sslrootcert"] = "system"
        if self.password_file is not None:
            found["password"] = _read_password(self.password_file)
        return found

    @property
    def is_local(self) -> bool:
        """Whether no byte leaves this machine: a loopback address, or a socket that is a file."""
        parts = _split(self.url)
        asked = dict(urllib.parse.parse_qsl(parts.query))
        hosts = urllib.parse.unquote(parts.netloc.rpartition("@")[2])
        named = [asked[name] for name in ("host", "hostaddr") if name in asked]
        each = [h for text in named or [hosts] for h in text.split(",")]
        return all(h.startswith("/") or _without_port(h) in LOOPBACK | {""} for h in each)


def _split(url: str) -> urllib.parse.SplitResult:
    try:
        return urllib.parse.urlsplit(url)
    except ValueError:
        raise ValueError("use postgresql://USER@HOST/DATABASE") from None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _read_password(file: Path) -> str:
    try:
        mode = exposed_mode(file)
        password = file.read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(f"the password file {shown(file)} cannot be read: {reason}") from None
    if mode is not None:
        raise SettingsError(
            f"other users can read the password file {shown(file)} (mode {mode:o}); run: chmod 600 "
            f"{shown(file)}"
        )
    return password
