"""The collector's settings: one table for flags, variables, the TOML file and the documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from protocol_spec.programs import settings as common
from protocol_spec.programs.address import BrokerUrl, Credentials, is_loopback, parse_broker
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.settings import Setting
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


PAGE: Final = Address("127.0.0.1", 9180)


def _listen(value: Any) -> Address:
    host, _, port = str(value).rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise ValueError("must be HOST:PORT, as in 127.0.0.1:9180")
    return Address(host.strip("[]"), int(port))


def _port_or_off(value: Any) -> Address | None:
    return None if str(value).lower() in ("off", "none", "") else _listen(value)


def _prefix_or_off(value: Any) -> str | None:
    if str(value).lower() in ("off", "none", ""):
        return None
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*", value):
        raise ValueError("must be the discovery prefix, homeassistant unless it was changed there")
    return value


SETTINGS: Final = (
    Setting(
        "data_dir",
        common.path,
        None,
        "directory of the collector's database and device key",
        "DIRECTORY",
    ),
    Setting(
        "broker",
        parse_broker,
        None,
        "the broker's address, mqtts://host or mqtt://localhost",
        "URL",
    ),
    Setting("namespace", check_namespace, DEFAULT_NAMESPACE, "first level of all topics"),
    Setting(
        "broker_dir",
        common.path,
        None,
        "what broker-config writes; DATA-DIR/broker if unset",
        "DIRECTORY",
    ),
    Setting("client_id", common.text, None, "the session's name at the broker; random if unset"),
    Setting(
        "listen", _port_or_off, PAGE, "HOST:PORT of page, metrics and health; or off", "ADDRESS"
    ),
    Setting(
        "page_token_file",
        common.path,
        None,
        "access token file, for listening beyond localhost; made if unset",
        "FILE",
    ),
    Setting(
        "home_assistant",
        _prefix_or_off,
        None,
        "discovery prefix of Home Assistant, homeassistant; off if unset",
        "PREFIX",
    ),
    *common.BROKER_SETTINGS,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved."""

    data_dir: Path
    broker: BrokerUrl | None
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
    if values["data_dir"] is None:
        values["data_dir"] = _default_data_dir(environ)
    values["broker_dir"] = values["broker_dir"] or values["data_dir"] / "broker"
    return Settings(**values)


def _default_data_dir(environ: Mapping[str, str]) -> Path:
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    home = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(home) / "allomfree-collector").expanduser()
