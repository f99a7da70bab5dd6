"""Settings: flags before `ALLOMFREE_*` variables before the TOML file before defaults.

A program's table of settings is its parser, its help texts and its documentation. Configuration
files are read and never written; passwords come from a file or the environment only.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol_spec.programs.errors import WrongSetting
from protocol_spec.shown import nearest, quoted, shown

LARGEST = 2**63 - 1  # a whole number in TOML; Python reads larger ones and cannot write them


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set, by flag, variable and file."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    help: str
    metavar: str = "TEXT"

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "ALLOMFREE_" + self.name.upper()


def text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be text")
    return value


def path(value: Any) -> Path:
    """A path; ~ is the home directory."""
    if "\0" in str(value):
        raise ValueError("must not hold the character 0")
    return (value if isinstance(value, Path) else Path(text(value))).expanduser()


def seconds(value: Any) -> int:
    """A number of seconds that MQTT can express as keepalive."""
    digits = str(value)  # True and 1.5 are no whole numbers
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 65_535):
        raise ValueError("must be from 1 to 65535 seconds")
    return int(digits)


def flag(value: Any) -> bool:
    """Whether something is switched on."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("1", "true", "yes", "on"):
        return True
    if str(value).lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("must be true or false")


def level(value: Any) -> str:
    """How much to log."""
    if str(value).lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("must be debug, info, warning or error")
    return str(value).lower()


BROKER_SETTINGS = (
    Setting("username", text, None, "name the broker knows us by", "NAME"),
    Setting("password_file", path, None, "file holding the broker's password", "FILE"),
    Setting(
        "ca_file", path, None, "certificate authority to trust instead of the system's", "FILE"
    ),
    Setting("cert_file", path, None, "client certificate, for mutual TLS", "FILE"),
    Setting("key_file", path, None, "the client certificate's key", "FILE"),
    Setting("allow_plaintext", flag, False, "accept mqtt:// to another machine, unencrypted"),
    Setting(
        "keepalive", seconds, 60, "seconds after which a silent connection is tested", "SECONDS"
    ),
    Setting("log_level", level, "info", "what to log: debug, info, warning or error", "LEVEL"),
)


def config_file(program: str, given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The configuration file: the one named, else the user's, else the system's, if any."""
    if given or "ALLOMFREE_CONFIG" in environ:
        return given or Path(environ["ALLOMFREE_CONFIG"])
    home = Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    candidates = (home / "allomfree", Path("/etc/allomfree"))
    return next(
        (d / f"{program}.toml" for d in candidates if (d / f"{program}.toml").exists()), None
    )


def load(file: Path | None) -> dict[str, Any]:
    """The configuration file's content; empty when there is none."""
    if file is None:
        return {}
    try:
        return tomllib.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise wrong(f"the configuration {shown(file)} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise wrong(f"the configuration {shown(file)} is not TOML: {shown(error)}") from None


def section(table: Mapping[str, Any], name: str, file: Path | None) -> dict[str, Any]:
    """One table of the configuration."""
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise wrong(f"{shown(file)}: {name} must be a table, [{name}]")
    return found


def resolve(
    settings: Sequence[Setting],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    file: Path | None,
    *,
    tables: Sequence[str] = (),
) -> dict[str, Any]:
    """Every setting's value. Raises `WrongSetting` naming where the bad value is."""
    names = [setting.name for setting in settings]
    for name in table:
        if name not in (*names, *tables):
            raise wrong(f"{shown(file)}: {_unknown(name, names, tables)}")
    return {s.name: _value(s, flags, environ, table, file) for s in settings}


def _unknown(name: str, names: Sequence[str], tables: Sequence[str]) -> str:
    extra = f", and tables {', '.join(f'[{t}]' for t in tables)}" if tables else ""
    near = nearest(name, [*names, *tables])
    there_are = f"{near} There are" if near else "; there are"
    return f"{shown(name, 80)} is not a setting{there_are} {', '.join(names)}{extra}"


def wrong(what: str) -> WrongSetting:
    """The error for a wrong setting; it says that nothing has happened yet."""
    return WrongSetting(what)


def read_password(file: Path | None) -> str | None:
    """The broker's password, from its file or ALLOMFREE_PASSWORD."""
    if file is None:
        return os.environ.get("ALLOMFREE_PASSWORD")
    try:
        return file.read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise wrong(f"the password file {shown(file)} cannot be read: {reason}") from None


def _value(
    setting: Setting,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    file: Path | None,
) -> Any:
    given = [
        (setting.flag, flags.get(setting.name)),
        (setting.variable, environ.get(setting.variable)),
        (f"{shown(file)}: {setting.name}", table.get(setting.name)),
    ]
    for where, value in given:
        if value is not None:
            if isinstance(value, int) and abs(value) > LARGEST:
                raise wrong(f"{where}: the number is too large")
            try:
                return setting.parse(value)
            except (ValueError, TypeError) as error:
                # An address with an @ in it may hold a password.
                given_value = "(hidden)" if "@" in str(value) else quoted(str(value))
                raise wrong(f"{where} = {given_value}: {shown(error)}") from None
    return setting.default
