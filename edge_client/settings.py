"""The agent's settings: one table for flags, variables, the TOML file and the documentation.

The configuration also holds the owner's `[policy]` and the `[sources.NAME]` of values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_client.policy import Policy
from protocol_spec.programs import settings as common
from protocol_spec.programs.address import Credentials
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.settings import Setting

SETTINGS: Final = (
    Setting(
        "state_dir", common.path, None, "directory of the device's memory, private to its owner"
    ),
    *common.BROKER_SETTINGS,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved."""

    state_dir: Path
    username: str | None
    password_file: Path | None
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None
    allow_plaintext: bool
    keepalive: int
    log_level: str
    policy: Policy
    sources: Mapping[str, Any]

    def credentials(self) -> Credentials:
        """What to show the broker; reads the password now."""
        files = (self.ca_file, self.cert_file, self.key_file)
        return Credentials(
            self.username,
            common.read_password(self.password_file),
            *(None if file is None else str(file) for file in files),
        )


def resolve(
    flags: Mapping[str, Any], *, config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Merge flags, environment and file. Raises `SettingsError` naming where the bad value is."""
    file = common.config_file("edge", config, environ)
    table = common.load(file)
    tables = ("policy", "sources.NAME")
    known = {name: value for name, value in table.items() if name not in ("policy", "sources")}
    values = common.resolve(SETTINGS, flags, environ, known, file, tables=tables)
    values["state_dir"] = values["state_dir"] or default_state_dir()
    return Settings(
        **values, policy=_policy(table, file), sources=common.section(table, "sources", file)
    )


def _policy(table: Mapping[str, Any], file: Path | None) -> Policy:
    try:
        return Policy.from_table(common.section(table, "policy", file))
    except SettingsError as error:
        raise common.wrong(f"{file}: {error}") from None


def default_state_dir() -> Path:
    """Where a service (root or systemd's StateDirectory) or a person keeps the memory."""
    service = os.environ.get("STATE_DIRECTORY")
    if service:
        return Path(service.split(":")[0])
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return (Path(home) / "allomfree-edge").expanduser()
