"""Where a device's values come from: one method, one file each.

A source is read only at the moment a report is drawn. When it has no usable value it raises
`SourceFailure`, nothing is drawn, and the message never repeats what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from edge_client.errors import SettingsError, SourceFailure
from protocol_spec.programs.output import nearest, quoted, shown


class Source(Protocol):
    """Anything that can be asked for the device's present value."""

    def read(self) -> object:
        """The value: text, or a number for numeric attributes."""


def build(attribute: str, table: Mapping[str, Any]) -> Source:
    """A source from its `[sources.NAME]` table. Kinds are imported only when used."""
    options = dict(table)
    if not options.keys() & {"kind", "value"}:
        raise _no_kind(attribute, options)
    kind = options.pop("kind", "static")
    if not isinstance(kind, str) or kind not in KINDS:
        kinds = ", ".join(sorted(KINDS))
        raise SettingsError(
            f"sources.{shown(attribute, 80)}.kind = {quoted(kind)}: choose one of {kinds}"
        )
    try:
        return KINDS[kind](options)
    except (TypeError, ValueError) as error:
        what = str(error).split("() ")[-1]  # Python names the class first, the owner has no use
        raise SettingsError(
            f"sources.{shown(attribute, 80)}: {shown(what)}. Nothing was drawn or sent"
        ) from None


def _no_kind(attribute: str, options: Mapping[str, Any]) -> SettingsError:
    """With the name that was meant, if one is near; what was written there may be a value."""
    near = next((n for option in options if (n := nearest(option, ("value", "kind")))), ".")
    return SettingsError(
        f"sources.{shown(attribute, 80)}: choose a kind of {', '.join(sorted(KINDS))}, or write "
        f"value = ...{near} Nothing was drawn or sent"
    )


def build_all(tables: Mapping[str, Any], file: Path | None = None) -> dict[str, Source]:
    """All sources of the configuration; `file` is where it was read."""
    try:
        return _build_all(tables)
    except SettingsError as error:
        raise SettingsError(f"{shown(file)}: {error}" if file else str(error)) from None


def _build_all(tables: Mapping[str, Any]) -> dict[str, Source]:
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise SettingsError(f"sources.{shown(name, 80)} must be a table, as in [sources.fuel]")
    return {name: build(name, table) for name, table in tables.items()}


def reader(sources: Mapping[str, Source]) -> Callable[[str], object]:
    """A function that reads an attribute's source, or says that there is none."""

    def read(attribute: str) -> object:
        if attribute not in sources:
            raise SourceFailure(
                f"no source for attribute {attribute!r}, which this device drew for life; nothing "
                f"was drawn or sent. Add [sources.{attribute}] to the configuration file"
            )
        return sources[attribute].read()

    return read


def _static(options: dict[str, Any]) -> Source:
    from edge_client.sources.static import StaticSource  # noqa: PLC0415

    return StaticSource(**options)


def _command(options: dict[str, Any]) -> Source:
    from edge_client.sources.command import CommandSource  # noqa: PLC0415

    return CommandSource(**options)


def _json(options: dict[str, Any]) -> Source:
    from edge_client.sources.json_file import JsonFileSource  # noqa: PLC0415

    return JsonFileSource(**options)


def _machine(options: dict[str, Any]) -> Source:
    from edge_client.sources.machine import MachineSource  # noqa: PLC0415

    return MachineSource(**options)


def _plugin(options: dict[str, Any]) -> Source:
    from edge_client.sources.plugin import plugin_source  # noqa: PLC0415

    return plugin_source(**options)


KINDS: dict[str, Callable[[dict[str, Any]], Source]] = {
    "static": _static,
    "command": _command,
    "json": _json,
    "machine": _machine,
    "plugin": _plugin,
}
