"""Where a device's values come from: the kinds of `[sources.NAME]` tables.

A source is read only at the moment a report is drawn. When it has no usable value it raises
`SourceFailure`, whose message never repeats what was read, and the agent answers with a stand-in
(P1). A library that only one kind needs is imported when that kind is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from edge_client.errors import SettingsError, SourceFailure
from edge_client.language import say
from protocol_spec import AllomfreeError, Attribute
from protocol_spec.programs.output import nearest, quoted, shown

PASSED_ON: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR")
OURS: Final = "ALLOMFREE_"
PLUGINS: Final = "allomfree.sources"  # the group of entry points
NO_VALUE: Final = "no value was read, and reports go on without one"


class Source(Protocol):
    """Anything that reads the device's current value."""

    def read(self) -> object:
        """The value: text, or a number for numeric attributes."""

    def missing(self) -> str:
        """What this device lacks to read it, before joining; empty for nothing. It may depend on
        what is installed, never on the value."""


@dataclass(frozen=True, slots=True)
class StaticSource:
    """`value = "wood"`, written in the configuration."""

    value: str | int | float | bool

    def read(self) -> object:
        return self.value

    def missing(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class CommandSource:
    """`command = ["vcgencmd", "measure_temp"]`, run without a shell; its output is the value.

    The command gets a small environment: what this process was given (a broker's password, the
    service manager's socket and credentials) is no business of a program that reads a sensor.
    """

    command: list[str]
    timeout: float = 10.0
    environment: Sequence[str] = ()

    def __post_init__(self) -> None:
        words: Any = self.command  # from the configuration: it may be anything
        if not (isinstance(words, list) and words and all(isinstance(w, str) for w in words)):
            raise ValueError('command must be a list of words, as in ["cat", "/etc/hostname"]')
        seconds: Any = self.timeout
        if not (isinstance(seconds, int | float) and 0 < seconds <= 3600):
            raise ValueError("timeout must be a number of seconds, at most 3600")
        names: Any = self.environment
        if not (isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)):
            raise ValueError('environment must be a list of names, as in ["DISPLAY"]')
        if any(name.startswith(OURS) for name in names):
            raise ValueError(f"environment: {OURS}* is for the agent alone and is not passed on")

    def read(self) -> object:
        """What the command prints, without surrounding white space."""
        import subprocess  # noqa: PLC0415 - only agents with such a source pay for it

        names = (*PASSED_ON, *self.environment)
        try:
            done = subprocess.run(  # noqa: S603 - the owner's own command, no shell
                self.command,
                env={n: v for n, v in os.environ.items() if n in names or n.startswith("LC_")},
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=self.timeout,
                check=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            what = f"took longer than {self.timeout:g} s"
        except subprocess.CalledProcessError as error:
            what = f"ended with code {error.returncode}"
        except (OSError, ValueError) as error:
            what = f"could not be run ({type(error).__name__})"
        else:
            if done.stdout.strip():
                return done.stdout.strip()
            what = "printed nothing"
        raise SourceFailure(f"the command {self.command[0]!r} {what}; {NO_VALUE}") from None

    def missing(self) -> str:
        import shutil  # noqa: PLC0415 - `run` does not check

        if shutil.which(program := self.command[0]):
            return ""
        return say(
            "the program {program} is not found, or must not be run", program=quoted(program)
        )


@dataclass(frozen=True, slots=True)
class JsonFileSource:
    """`file = "/run/heater.json"`, `field = "status.fuel"` (dots go into nested objects)."""

    file: str
    field: str

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (self.file, self.field)):
            raise ValueError('file and field must be text, as in field = "status.fuel"')

    def read(self) -> object:
        try:
            found = json.loads(Path(self.file).read_text(encoding="utf-8"))
            for name in self.field.split("."):
                found = found[int(name) if isinstance(found, list) else name]
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        except UnicodeDecodeError:
            what = "is not UTF-8 text"
        except (json.JSONDecodeError, RecursionError):
            what = "is not JSON"
        except (KeyError, IndexError, TypeError, ValueError):
            what = f"has no field {quoted(self.field)}"
        else:
            if isinstance(found, str | int | float | bool):
                return found
            what = f"holds neither text nor a number at {quoted(self.field)}"
        raise SourceFailure(f"{self.file} {what}; {NO_VALUE}") from None

    def missing(self) -> str:
        if Path(self.file).is_file() and os.access(self.file, os.R_OK):
            return ""
        return say("the file {file} is not there, or must not be read", file=shown(self.file))


# --- facts about the machine ---------------------------------------------------------------------


def _model() -> str:
    for path in ("/proc/device-tree/model", "/sys/devices/virtual/dmi/id/product_name"):
        try:
            return Path(path).read_text(encoding="utf-8").strip(" \n\0")
        except OSError:
            continue
    raise OSError("no model is known")


def _distribution(field: str) -> str:
    import platform  # noqa: PLC0415 - only for this fact

    return platform.freedesktop_os_release().get(field, "")


def _number_in(path: str) -> float:
    return float(Path(path).read_text(encoding="ascii").split()[0])


MachineFacts = Mapping[str, Callable[[], str | float]]

FACTS: MachineFacts = {
    "model": _model,
    "os": lambda: _distribution("ID"),
    "os_version": lambda: _distribution("VERSION_ID"),
    "architecture": lambda: os.uname().machine,
    "cpu_count": lambda: os.cpu_count() or 1,
    "memory_gib": lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
    "cpu_temperature": lambda: _number_in("/sys/class/thermal/thermal_zone0/temp") / 1000,  # °C
    "load": lambda: os.getloadavg()[2],  # of 15 minutes
    "uptime_days": lambda: _number_in("/proc/uptime") / 86_400,
}


@dataclass(frozen=True, slots=True)
class MachineSource:
    """`fact = "cpu_temperature"`, one of FACTS."""

    fact: str

    def __post_init__(self) -> None:
        if self.fact not in FACTS:
            known = ", ".join(sorted(FACTS))
            raise ValueError(f"fact = {quoted(self.fact)}: choose one of {known}")

    def read(self) -> object:
        return read_fact(self.fact)

    def missing(self) -> str:
        try:
            self.read()  # whether there is such a fact, not what it is
        except SourceFailure:
            return say("this machine does not report its {fact}", fact=self.fact)
        return ""


def read_fact(fact: str, facts: MachineFacts = FACTS) -> str | float:
    """Ask the machine, or raise `SourceFailure` if it does not know."""
    try:
        return facts[fact]()
    except (OSError, ValueError, KeyError):
        raise SourceFailure(f"this machine does not report its {fact}; {NO_VALUE}") from None


# --- plugins -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PluginSource:
    """`name = "heater"`: the function behind that entry point of group `allomfree.sources`."""

    name: str
    function: Callable[..., object]
    options: dict[str, Any]

    def read(self) -> object:
        try:
            return self.function(**self.options)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code may raise anything
            kind = type(error).__name__
        # Outside of the handler, so that not even the context holds the plugin's message.
        raise SourceFailure(f"the plugin {quoted(self.name)} failed with {kind}; {NO_VALUE}")

    def missing(self) -> str:
        return ""  # it is loaded already


def plugin_source(name: str, **options: Any) -> PluginSource:
    """Load the function now, so that a missing plugin shows at start."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - it loads e-mail parsers

    found = {point.name: point for point in entry_points(group=PLUGINS)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ValueError(f"name = {quoted(name)}: no such plugin is installed (installed: {known})")
    try:
        function = found[name].load()
    except Exception as error:  # noqa: BLE001 - importing a stranger's code may raise anything
        kind = type(error).__name__
        raise ValueError(f"name = {quoted(name)}: the plugin cannot be loaded ({kind})") from None
    return PluginSource(name, function, options)


# --- from the configuration ----------------------------------------------------------------------

KINDS: Final[dict[str, Callable[..., Source]]] = {
    "static": StaticSource,
    "command": CommandSource,
    "json": JsonFileSource,
    "machine": MachineSource,
    "plugin": plugin_source,
}


def build(attribute: str, table: object) -> Source:
    """A source from its `[sources.NAME]` table."""
    name, kinds = f"sources.{shown(attribute, 80)}", ", ".join(sorted(KINDS))
    if not isinstance(table, Mapping):
        raise SettingsError(f"{name} must be a table, as in [sources.fuel]")
    options = dict(table)
    if not options.keys() & {"kind", "value"}:
        # Only names of options are repeated: what was written there may be a value.
        near = next((n for option in options if (n := nearest(option, ("value", "kind")))), ".")
        raise SettingsError(
            f"{name}: choose a kind of {kinds}, or write value = ...{near} "
            "Nothing was drawn or sent"
        )
    kind = options.pop("kind", "static")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SettingsError(f"{name}.kind = {quoted(kind)}: choose one of {kinds}")
    try:
        return KINDS[kind](**options)
    except (TypeError, ValueError) as error:
        what = str(error).split("() ")[-1]  # without the class that Python names first
        raise SettingsError(f"{name}: {shown(what)}. Nothing was drawn or sent") from None


def build_all(tables: Mapping[str, Any], file: Path | None = None) -> dict[str, Source]:
    try:
        return {name: build(name, table) for name, table in tables.items()}
    except SettingsError as error:
        raise SettingsError(f"{shown(file)}: {error}" if file else str(error)) from None


def reader(sources: Mapping[str, Source]) -> Callable[[str], object]:
    """A function that reads an attribute's source; `SourceFailure` if there is none."""

    def read(attribute: str) -> object:
        if attribute not in sources:
            raise SourceFailure(
                f"no source for attribute {attribute!r}, which this device drew for life; "
                f"{NO_VALUE}. Add [sources.{attribute}] to the configuration file"
            )
        return sources[attribute].read()

    return read


# --- checks before joining -----------------------------------------------------------------------
# They depend only on the configuration and on what is installed: no source, a wrong option, a
# program or file that does not exist. Whether a source gives a usable value is as private as the
# value (P1); only `doctor` tries that.


def unreadable(attributes: Sequence[Attribute], tables: Mapping[str, Any]) -> list[dict[str, str]]:
    """The attributes that this device has no readable source for, whatever their values: each with
    its problem and, if there is no source at all, lines for the configuration."""
    found = []
    for attribute in (part for asked in attributes for part in asked.parts):
        name, lines = attribute.name, ""
        if name not in tables:
            problem, lines = say("there is no source for it"), example(attribute)
        else:
            try:
                problem = build(name, tables[name]).missing()
            except AllomfreeError as error:
                problem = str(error)
        if problem:
            found.append({"attribute": name, "problem": problem, "lines": lines})
    return found


def example(attribute: Attribute) -> str:
    """A table to add. Left unchanged, it counts as an answer that is none of those offered."""
    table = f"[sources.{attribute.name}]"
    machine = f'kind = "machine"\nfact = "{attribute.name}"'
    if attribute.edges is not None and attribute.name in FACTS:
        return f"{table}\n{machine}"
    if attribute.edges is not None:
        prints = say("a program that prints the number")
        return f'{table}\nkind = "command"\ncommand = ["cat", "/path"]  # {prints}'
    values = ", ".join(shown(value, 40) for value in attribute.values[:8])
    more = ", ..." if len(attribute.values) > 8 else ""
    yours = say("yours, one of: {values}", values=values + more)
    lines = f'{table}\nvalue = "..."  # {yours}'
    if attribute.name in FACTS:  # perhaps: the model of a car is not the machine's
        instead = say("or instead, if the question is about this machine:")
        lines += f"\n# {instead}\n# " + machine.replace("\n", "\n# ")
    return lines
