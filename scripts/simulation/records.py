"""A finished run: rows in three formats, a directory to keep them in, two runs side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from collector.results.tables import write_rows
from protocol_spec.estimation import critical_value
from simulation.collected import TRUTH_COLUMNS
from simulation.errors import SimulationError

FACTS, ROWS = "run.json", "results.ndjson"
CONFIDENCE: Final = 0.999  # two runs of one thing are told apart wrongly once in a thousand

Row = Mapping[str, Any]


def write(table: Iterable[Row], form: str) -> str:
    """Rows as CSV, JSON or NDJSON."""
    return write_rows(table, TRUTH_COLUMNS, form)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: how it was made, and what came out."""

    facts: Mapping[str, Any]
    rows: Sequence[Row]

    def save(self, directory: Path) -> None:
        """Keep it in a directory of its own."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ROWS).write_text(write(self.rows, "ndjson"), encoding="utf-8")
        text = json.dumps(self.facts, ensure_ascii=False, indent=1) + "\n"
        (directory / FACTS).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Run:
        """Read it back."""
        try:
            facts = json.loads((directory / FACTS).read_text(encoding="utf-8"))
            lines = (directory / ROWS).read_text(encoding="utf-8").splitlines()
            return cls(facts, [json.loads(line) for line in lines])
        except (OSError, ValueError):
            raise SimulationError(
                f"{directory} does not hold a run; keep one there with --store {directory}"
            ) from None


@dataclass(frozen=True, slots=True)
class Score:
    """How one histogram of a run did: errors about the truth, and z-scores over its values."""

    n: int
    mse: float
    mse_projected: float
    rms_z: float
    largest_z: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The same histogram in two runs; `apart` is the largest difference of two z-scores, which
    has a standard deviation of 1 when both runs are of one law and independent."""

    attribute: str
    round: int | None
    left: Score
    right: Score
    apart: float
    limit: float

    @property
    def agree(self) -> bool:
        """Whether chance explains the difference."""
        return self.apart <= self.limit

    def facts(self) -> dict[str, Any]:
        """What `compare --json` prints."""
        return {**asdict(self), "agree": self.agree}


def score(rows: Sequence[Row]) -> Score:
    """Of the rows of one histogram."""
    scores = [row["z"] for row in rows if row["z"] is not None]
    return Score(
        rows[0]["n"],
        _mean_square([row["raw"] - row["truth"] for row in rows]),
        _mean_square([row["projected"] - row["truth"] for row in rows]),
        math.sqrt(_mean_square(scores)),
        max(map(abs, scores), default=0.0),
    )


def compare(left: Run, right: Run) -> list[Pair]:
    """Every histogram that both runs released."""
    ours, theirs = _histograms(left), _histograms(right)
    common = [
        key
        for key, rows in ours.items()
        if key in theirs and [r["value"] for r in rows] == [r["value"] for r in theirs[key]]
    ]
    if not common:
        raise SimulationError("the two runs have no histogram in common; nothing can be compared")
    comparisons = sum(len(ours[key]) for key in common)
    return [_pair(key, ours[key], theirs[key], comparisons) for key in common]


def pooled(rows: Iterable[Row]) -> list[Row]:
    """All rounds of each attribute together: of what spans several rounds, that with the most."""
    spanning = [row for row in rows if row["round"] is None]
    most: dict[str, int] = {}
    for row in spanning:
        most[row["attribute"]] = max(row["n"], most.get(row["attribute"], 0))
    chosen = {
        (row["attribute"], row["value"]): row
        for row in reversed(spanning)
        if row["n"] == most[row["attribute"]]
    }
    return [row for row in spanning if chosen[row["attribute"], row["value"]] is row]


def _pair(
    key: tuple[str, int | None], ours: Sequence[Row], theirs: Sequence[Row], comparisons: int
) -> Pair:
    apart = [
        abs(a["z"] - b["z"]) / math.sqrt(2.0)
        for a, b in zip(ours, theirs)
        if a["z"] is not None and b["z"] is not None
    ]
    limit = critical_value(CONFIDENCE, comparisons)
    return Pair(*key, score(ours), score(theirs), max(apart, default=0.0), limit)


def _histograms(run: Run) -> dict[tuple[str, int | None], list[Row]]:
    """Of single rounds, and of all together."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    together = set(map(id, pooled(run.rows)))
    for row in run.rows:
        wanted = row["round"] is not None or id(row) in together
        if wanted and not row["withheld"]:
            found.setdefault((row["attribute"], row["round"]), []).append(row)
    return found


def _mean_square(numbers: Sequence[float]) -> float:
    return sum(x * x for x in numbers) / len(numbers) if numbers else 0.0
