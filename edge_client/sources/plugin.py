"""A value from a Python function of another package, found by its entry point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from edge_client.errors import SourceFailure
from protocol_spec.programs.output import quoted

GROUP = "allomfree.sources"


@dataclass(frozen=True, slots=True)
class PluginSource:
    """`name = "heater"`: the function behind that entry point of group `allomfree.sources`."""

    name: str
    function: Callable[..., object]
    options: dict[str, Any]

    def read(self) -> object:
        """What the function returns."""
        try:
            return self.function(**self.options)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code may raise anything
            kind = type(error).__name__
        # Outside of the handler, so that not even the context holds what the plugin said.
        raise SourceFailure(
            f"the plugin {quoted(self.name)} failed with {kind}; nothing was drawn or sent"
        )


def plugin_source(name: str, **options: Any) -> PluginSource:
    """Load the function now, so that a missing plugin shows at start."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ValueError(f"name = {quoted(name)}: no such plugin is installed (installed: {known})")
    try:
        function = found[name].load()
    except Exception as error:  # noqa: BLE001 - importing a stranger's code may raise anything
        kind = type(error).__name__
        raise ValueError(f"name = {quoted(name)}: the plugin cannot be loaded ({kind})") from None
    return PluginSource(name, function, options)
