"""The verbs of a program as a table: what is typed, where it is done, and its line in `--help`.

A verb's module is loaded when the verb is typed. So `--help` and `health` wait for no library of
numbers, and the page of all verbs can be shown where only the agent is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.installing import install


class Verbs(MutableMapping[str, click.Command]):
    """Commands by name, in the order of `--help`.

    `package` holds their modules; `extra` is what to install if a library is missing, or "" where
    all that is needed comes with every install.
    """

    def __init__(self, package: str, extra: str, *rows: tuple[str, str, str]) -> None:
        self._package, self._extra = package, extra
        self._modules = {name: module for name, module, _ in rows}
        self.lines = {name: line for name, _, line in rows}
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = self._load(name, self._modules[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command
        self.lines[name] = command.short_help or ""

    def __delitem__(self, name: str) -> None:
        del self.lines[name]
        self._modules.pop(name, None)
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def _load(self, name: str, module: str) -> click.Command:
        try:
            holder = import_module(f"{self._package}.{module}")
        except ModuleNotFoundError as missing:
            if not self._extra:
                raise
            raise SettingsError(
                f"{name} needs {missing.name}, which is not installed; nothing was done. "
                f"Run: {install(self._extra)}"
            ) from None
        command: click.Command = getattr(holder, name.replace("-", "_"))
        return command
