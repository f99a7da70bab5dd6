"""Settings: flags before `ALLOMFREE_*` variables before the TOML file before defaults.

One table is the parser, the help texts and the documentation. The configuration file is read and
never written; passwords come from a file or the environment only.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_client.broker_url import Credentials
from edge_client.errors import SettingsError
from edge_client.policy import Policy


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set, by flag, variable and file."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "ALLOMFREE_" + self.name.upper()


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text")
    return value


def _path(value: Any) -> Path:
    return (value if isinstance(value, Path) else Path(_text(value))).expanduser()


def _seconds(value: Any) -> int:
    text = str(value)  # True and 1.5 are no whole numbers
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65_535):
        raise ValueError("must be from 1 to 65535 seconds")
    return int(text)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("1", "true", "yes", "on"):
        return True
    if str(value).lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("must be true or false")


def _level(value: Any) -> str:
    if str(value).lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("must be debug, info, warning or error")
    return str(value).lower()


def default_state_dir() -> Path:
    """Where a service (root or systemd's StateDirectory) or a person keeps the memory."""
    service = os.environ.get("STATE_DIRECTORY")
    if service:
        return Path(service.split(":")[0])
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return (Path(home) / "allomfree-edge").expanduser()


def default_config() -> Path | None:
    """The first configuration file there is: the user's, then the system's."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    for path in (
        Path(home).expanduser() / "allomfree" / "edge.toml",
        Path("/etc/allomfree/edge.toml"),
    ):
        if path.exists():
            return path
    return None


SETTINGS: Final = (
    Setting("state_dir", _path, None, "directory of the device's memory, private to its owner"),
    Setting("username", _text, None, "name the broker knows this device by"),
    Setting("password_file", _path, None, "file holding the broker's password"),
    Setting("ca_file", _path, None, "certificate authority to trust instead of the system's"),
    Setting("cert_file", _path, None, "client certificate, for mutual TLS"),
    Setting("key_file", _path, None, "the client certificate's key"),
    Setting("allow_plaintext", _flag, False, "accept mqtt:// to another machine, unencrypted"),
    Setting("keepalive", _seconds, 60, "seconds after which a silent connection is tested"),
    Setting("log_level", _level, "info", "debug, info, warning or error"),
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
        password = os.environ.get("ALLOMFREE_PASSWORD")
        if self.password_file:
            try:
                password = self.password_file.read_text(encoding="utf-8").strip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not text"
                raise _wrong(
                    f"the password file {self.password_file} cannot be read: {reason}"
                ) from None
        return Credentials(
            self.username,
            password,
            _optional(self.ca_file),
            _optional(self.cert_file),
            _optional(self.key_file),
        )


def resolve(
    flags: Mapping[str, Any], *, config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Merge flags, environment and file. Raises `SettingsError` naming where the bad value is."""
    named = config or (Path(environ["ALLOMFREE_CONFIG"]) if "ALLOMFREE_CONFIG" in environ else None)
    path = named or default_config()
    table = _load(path) if path else {}
    policy = _policy(table, path)
    sources = _section(table, "sources", path)
    for name in table:
        if name not in {setting.name for setting in SETTINGS} | {"policy", "sources"}:
            known = ", ".join(setting.name for setting in SETTINGS)
            raise _wrong(
                f"{path}: {name} is not a setting; there are {known}, and tables "
                "[policy] and [sources.NAME]"
            )
    values = {setting.name: _value(setting, flags, environ, table, path) for setting in SETTINGS}
    values["state_dir"] = values["state_dir"] or default_state_dir()
    return Settings(**values, policy=policy, sources=sources)


def _value(
    setting: Setting,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    path: Path | None,
) -> Any:
    given = [
        (setting.flag, flags.get(setting.name)),
        (setting.variable, environ.get(setting.variable)),
        (f"{path}: {setting.name}", table.get(setting.name)),
    ]
    for where, value in given:
        if value is not None:
            try:
                return setting.parse(value)
            except (ValueError, TypeError) as error:
                raise _wrong(f"{where} = {str(value)!r}: {error}") from None
    return setting.default


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(f"the configuration {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"the configuration {path} is not TOML: {error}") from None


def _policy(table: Mapping[str, Any], path: Path | None) -> Policy:
    try:
        return Policy.from_table(_section(table, "policy", path))
    except SettingsError as error:
        raise _wrong(f"{path}: {error}") from None


def _section(table: Mapping[str, Any], name: str, path: Path | None) -> dict[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise _wrong(f"{path}: {name} must be a table, [{name}]")
    return section


def _wrong(what: str) -> SettingsError:
    return SettingsError(f"{what}. Nothing was drawn or sent")


def _optional(path: Path | None) -> str | None:
    return None if path is None else str(path)
