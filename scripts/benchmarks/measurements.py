"""A measured number beside the limit it must keep, and tables of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number. Without a limit it is for information; without a value it was not available."""

    what: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    note: str = ""
    at_least: float | None = None

    @property
    def verdict(self) -> str:
        """`ok`, `BROKEN`, or why nothing is judged."""
        if self.value is None:
            return "not available"
        if self.limit is None and self.at_least is None:
            return "for information"
        low = self.at_least is None or self.value >= self.at_least
        high = self.limit is None or self.value <= self.limit
        return "ok" if low and high else "BROKEN"


def kept(measurements: Sequence[Measurement]) -> bool:
    """Whether no limit is broken."""
    return all(m.verdict != "BROKEN" for m in measurements)


def as_json(subject: str, measurements: Sequence[Measurement]) -> str:
    """One object."""
    rows = [{**asdict(m), "verdict": m.verdict} for m in measurements]
    facts = {"benchmark": subject, "ok": kept(measurements), "measurements": rows}
    return json.dumps(facts, ensure_ascii=False)


def as_text(measurements: Sequence[Measurement]) -> str:
    """A table for people."""
    head = ("what", "measured", "limit", "verdict", "")
    rows = [head, *(_cells(m) for m in measurements)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:<{widths[3]}}  {e}".rstrip()
        for a, b, c, d, e in rows
    )


def _cells(m: Measurement) -> tuple[str, str, str, str, str]:
    value = "-" if m.value is None else f"{m.value:.4g} {m.unit}".strip()
    limit = "-" if m.limit is None else f"<= {m.limit:.4g}"
    limit = limit if m.at_least is None else f">= {m.at_least:.4g}"
    return m.what, value, limit, m.verdict, m.note
