"""A value written in the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StaticSource:
    """`value = "wood"`"""

    value: str | int | float | bool

    def read(self) -> object:
        """The configured value."""
        return self.value
