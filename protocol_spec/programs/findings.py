"""What a `doctor` finds: one thing that was checked, and where it failed, the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


class FindingFacts(TypedDict):
    """One finding as `doctor --json` prints it."""

    check: str
    ok: bool
    finding: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    what: str
    ok: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'}  {self.what}: {self.text}"

    def facts(self) -> FindingFacts:
        """What `doctor --json` prints of it."""
        return {"check": self.what, "ok": self.ok, "finding": self.text}
