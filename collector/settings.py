"""The collector's settings: one table for flags, variables, the TOML file and the documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from protocol_spec.programs import settings as common
from protocol_spec.programs.output import shown
from protocol_spec.programs.settings import (
    BrokerUrl,
    Credentials,
    Setting,
    SettingsError,
    is_loopback,
    parse_brokers,
    parse_only_broker,
)
from protocol_spec.programs.system import exposed_mode
from protocol_spec.topics import DEFAULT_NAMESPACE, check_namespace


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)


class StreamAddress(BrokerUrl):
    """Where NATS listens for its own clients."""

    __slots__ = ()
    schemes: ClassVar = ("nats", "tls")
    ports: ClassVar = (4222, 4222)


PAGE: Final = Address("127.0.0.1", 9180)
STREAM_PORT: Final = 4222
_OFF: Final = ("off", "none", "")


def _listen(value: Any) -> Address | None:
    if str(value).lower() in _OFF:
        return None
    host, _, port = str(value).rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise ValueError("must be HOST:PORT, as in 127.0.0.1:9180")
    return Address(host.strip("[]"), int(port))


def parse_streams(value: Any) -> tuple[StreamAddress, ...]:
    """NATS servers of one cluster, or the one there is."""
    return cast("tuple[StreamAddress, ...]", parse_brokers(value, StreamAddress))


DISCOVERY_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")


def _prefix_or_off(value: Any) -> str:
    """A prefix; empty if it is switched off, which is more than not being set."""
    if str(value).lower() in _OFF:
        return ""
    if not isinstance(value, str) or not DISCOVERY_PREFIX.fullmatch(value):
        raise ValueError("must be the discovery prefix, homeassistant unless it was changed there")
    return value


def _store(value: Any) -> StoreAddress:
    return value if isinstance(value, StoreAddress) else StoreAddress(common.text(value))


_DIRECTORY: Final = "directory of the collector's database and device key"
_BROKER: Final = "the broker's address, mqtts://host or mqtt://localhost"
_STREAM: Final = "NATS's own port, for several workers: tls://host:4222, or several with commas"
_STORE: Final = "PostgreSQL database, postgresql://USER@HOST/DATABASE; a file in DATA-DIR if unset"
_STORE_PASSWORD: Final = "file holding the database's password"  # noqa: S105 - a help text
_BROKER_DIR: Final = "what broker-config writes; DATA-DIR/broker if unset"
_LISTEN: Final = "HOST:PORT of page, metrics and health; or off"
_TOKEN: Final = "access token file, for listening beyond localhost; made if unset"  # noqa: S105
_HOME: Final = "discovery prefix of Home Assistant, homeassistant; off if unset"

SETTINGS: Final = (
    Setting("data_dir", common.path, None, _DIRECTORY, "DIRECTORY"),
    Setting("broker", parse_only_broker, None, _BROKER, "URL"),
    Setting("stream", parse_streams, None, _STREAM, "URLS"),
    Setting("store", _store, None, _STORE, "URL"),
    Setting("store_password_file", common.path, None, _STORE_PASSWORD, "FILE"),
    Setting("namespace", check_namespace, DEFAULT_NAMESPACE, "first level of all topics"),
    Setting("broker_dir", common.path, None, _BROKER_DIR, "DIRECTORY"),
    Setting("client_id", common.text, None, "the session's name at the broker; random if unset"),
    Setting("listen", _listen, PAGE, _LISTEN, "ADDRESS"),
    Setting("page_token_file", common.path, None, _TOKEN, "FILE"),
    Setting("home_assistant", _prefix_or_off, None, _HOME, "PREFIX"),
    *common.BROKER_SETTINGS,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved."""

    data_dir: Path
    broker: BrokerUrl | None
    stream: tuple[StreamAddress, ...] | None
    store: StoreAddress | None
    store_password_file: Path | None
    namespace: str
    broker_dir: Path
    client_id: str | None
    home_assistant: str | None
    listen: Address | None
    page_token_file: Path | None
    username: str | None
    password_file: Path | None
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None
    allow_plaintext: bool
    keepalive: int
    log_level: str

    def credentials(self) -> Credentials:
        """What the broker asks for; reads the password file now."""
        files = (self.ca_file, self.cert_file, self.key_file)
        return Credentials(
            self.username,
            common.read_password(self.password_file),
            *(None if file is None else str(file) for file in files),
        )

    def required_broker(self) -> BrokerUrl:
        """The broker, or an error that says how to name one."""
        if self.broker is None:
            raise SettingsError(
                "no broker is named; nothing was done. Give --broker mqtts://HOST, or set "
                "ALLOMFREE_BROKER or `broker` in the configuration file"
            )
        self.broker.check_plaintext(self.allow_plaintext)
        return self.broker


def resolve(
    flags: Mapping[str, Any], *, config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Merge flags, environment and file."""
    file = common.config_file("collector", config, environ)
    values = common.resolve(SETTINGS, flags, environ, common.load(file), file)
    if values["data_dir"] is None and environ.get("STATE_DIRECTORY"):
        values["data_dir"] = Path(environ["STATE_DIRECTORY"].split(":")[0])
    elif values["data_dir"] is None:
        home = environ.get("XDG_DATA_HOME") or "~/.local/share"
        values["data_dir"] = (Path(home) / "allomfree-collector").expanduser()
    values["broker_dir"] = values["broker_dir"] or values["data_dir"] / "broker"
    if values["store"] is not None:
        values["store"] = replace(values["store"], password_file=values["store_password_file"])
    return Settings(**values)


# --- the address of a shared store ---------------------------------------------------------------

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
    """Where a PostgreSQL database is, without its password; its text is safe to show.

    Unless it is on this machine, the server is verified (`sslmode=verify-full`), or as the address
    says. A password in an address could be read in the list of processes.
    """

    url: str
    password_file: Path | None = None

    def __post_init__(self) -> None:
        parts, asked = self._parts()
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
        parts, _ = self._parts()
        return f"postgresql://{parts.netloc}{parts.path}"

    def _parts(self) -> tuple[SplitResult, dict[str, str]]:
        try:
            parts = urlsplit(self.url)
        except ValueError:
            raise ValueError("use postgresql://USER@HOST/DATABASE") from None
        return parts, dict(parse_qsl(parts.query))

    def options(self) -> dict[str, str]:
        """Options for libpq, the password included."""
        _, asked = self._parts()
        found = {name: value for name, value in PATIENCE.items() if name not in asked}
        if "sslmode" not in asked and not self.is_local:
            found["sslmode"] = "verify-full"
            if "sslrootcert" not in asked:
                found["sslrootcert"] = "system"
        if self.password_file is not None:
            mode = exposed_mode(self.password_file) if self.password_file.exists() else None
            if mode is not None:
                file = shown(self.password_file)
                raise SettingsError(
                    f"other users can read the password file {file} (mode {mode:o}); run: chmod "
                    f"600 {file}"
                )
            found["password"] = common.read_password(self.password_file) or ""
        return found

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine: a loopback address, or a socket that is a file."""
        parts, asked = self._parts()
        hosts = unquote(parts.netloc.rpartition("@")[2])
        named = [asked[name] for name in ("host", "hostaddr") if name in asked]
        each = [h for text in named or [hosts] for h in text.split(",")]
        return all(h.startswith("/") or _without_port(h) in LOOPBACK | {""} for h in each)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]
