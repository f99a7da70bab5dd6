"""The agent's settings: one table for flags, variables, the TOML file and the documentation.

The configuration also holds the owner's `[policy]` and the `[sources.NAME]` of values.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_client.credentials import Remembered
from edge_client.errors import SettingsError, as_edge_errors
from edge_client.language import language_of, parse_language
from edge_client.policy import Policy
from protocol_spec.programs import settings as common
from protocol_spec.programs.settings import BrokerUrl, Credentials, Setting, parse_brokers

REMEMBERED: Final = frozenset(
    ("username", "password", "password_file", "ca_file", "cert_file", "key_file")
)
OF_SERVICE: Final = Path("/var/lib/allomfree-edge")  # StateDirectory= of the unit
USERS_FILE: Final = Path("~/.config/allomfree/edge.toml")  # to write where none was read

SETTINGS: Final = (
    Setting(
        "state_dir", common.path, None, "directory of the device's memory, private to its owner"
    ),
    *common.BROKER_SETTINGS,
    Setting(
        "credentials_for",
        parse_brokers,
        None,
        "broker that user name, password and certificate are for; no other sees them",
        "URL",
    ),
    Setting(
        "language",
        parse_language,
        None,
        "language of what the owner reads: en, de or fr; else that of the locale",
        "CODE",
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved.

    `config` is the file that was read, `given` the names of those set by flags and variables.
    """

    state_dir: Path
    username: str | None
    password_file: Path | None
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None
    credentials_for: tuple[BrokerUrl, ...] | None
    allow_plaintext: bool
    keepalive: int
    log_level: str
    language: str | None
    policy: Policy
    sources: Mapping[str, Any]
    config: Path | None = None
    given: frozenset[str] = frozenset()

    @property
    def owner_language(self) -> str:
        return self.language or language_of(os.environ)

    def to_remember(self) -> Remembered | None:
        """What a later command would miss of the credentials; None if the file has them all."""
        if not self.given & REMEMBERED:
            return None
        named = (self.password_file, self.ca_file, self.cert_file, self.key_file)
        files = [None if file is None else str(file.absolute()) for file in named]
        password = None if self.password_file else common.read_password(None)
        return Remembered(self.username, password, *files)

    @as_edge_errors()
    def credentials(self) -> Credentials:
        """What to show the broker; reads the password now."""
        files = (self.ca_file, self.cert_file, self.key_file)
        return Credentials(
            self.username,
            common.read_password(self.password_file),
            *(None if file is None else str(file) for file in files),
        )


@as_edge_errors()
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
    try:
        policy = Policy.from_table(common.section(table, "policy", file))
    except SettingsError as error:
        raise common.WrongSetting(f"{file}: {error}") from None
    given = {s.name for s in SETTINGS if flags.get(s.name) is not None or s.variable in environ}
    return Settings(
        **values,
        policy=policy,
        sources=common.section(table, "sources", file),
        config=file,
        given=frozenset(given | ({"password"} if "ALLOMFREE_PASSWORD" in environ else set())),
    )


def default_state_dir(
    environ: Mapping[str, str] = os.environ, of_service: Path = OF_SERVICE
) -> Path:
    """Where a service or a person keeps the memory.

    systemd names the service's directory to the service alone. Whoever runs as the service's user
    without systemd, such as cron, gets the same one: a second memory would draw, and reveal, again.
    """
    service = environ.get("STATE_DIRECTORY")
    if service:
        return Path(service.split(":")[0])
    home = environ.get("XDG_STATE_HOME") or "~/.local/state"
    own = (Path(home) / "allomfree-edge").expanduser()
    if own.exists():
        return own
    try:
        found = of_service.lstat()
    except OSError:
        return own
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return of_service if is_ours else own
