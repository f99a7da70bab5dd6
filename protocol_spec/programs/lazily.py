"""Modules that a library names at its top and seldom uses, loaded when they are used.

paho imports `urllib.request` for proxies that nobody here has; it brings HTTP and e-mail along,
2.4 MiB of the agent's memory. Where this finds nothing to put off, everything is loaded as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


class _Finder(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002 - only for reloads
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def put_off(name: str) -> Iterator[None]:
    """What is imported meanwhile gets this module without its contents, until they are used."""
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
