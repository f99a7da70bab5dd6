"""The collector's settings: one table for flags, variables, the TOML file and the documentation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol_spec.common import settings as common
from protocol_spec.common.address import BrokerUrl, Credentials, parse_broker
from protocol_spec.common.errors import SettingsError
from protocol_spec.common.settings import Setting
from protocol_spec.topics import DEFAULT_NAMESPACE, check_namespace


def _listen(value: Any) -> tuple[str, int]:
    host, _, port = str(value).rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise ValueError("must be HOST:PORT, as in 127.0.0.1:9180")
    return host.strip("[]"), int(port)


def _port_or_off(value: Any) -> tuple[str, int] | None:
    return None if str(value).lower() in ("off", "none", "") else _listen(value)


SETTINGS: Final = (
    Setting("data_dir", common.path, None, "directory of the collector's database and device key"),
    Setting("broker", parse_broker, None, "the broker's address, mqtts://host or mqtt://localhost"),
    Setting("namespace", check_namespace, DEFAULT_NAMESPACE, "first level of all topics"),
    Setting("client_id", common.text, "allomfree-collector", "name of the session at the broker"),
    Setting("listen", _port_or_off, None, "HOST:PORT of metrics and health; off by default"),
    *common.BROKER_SETTINGS,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved."""

    data_dir: Path
    broker: BrokerUrl | None
    namespace: str
    client_id: str
    listen: tuple[str, int] | None
    username: str | None
    password_file: Path | None
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None
    allow_plaintext: bool
    keepalive: int
    log_level: str

    @property
    def database(self) -> Path:
        """The collector's database."""
        return self.data_dir / "collector.db"

    def credentials(self) -> Credentials:
        """What to show the broker; reads the password now."""
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
    return Settings(**values)


def _default_data_dir(environ: Mapping[str, str]) -> Path:
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    home = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(home) / "allomfree-collector").expanduser()
