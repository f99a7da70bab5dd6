"""The true frequencies of a simulation, which alone knows them; the page draws them dotted.

Nothing that collects from devices writes this file: a campaign that has one is a simulation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from collector.errors import StorageFailure
from protocol_spec.programs.private_files import write_durably


def write_truth(directory: Path, campaign: str, frequencies: Mapping[str, Sequence[float]]) -> None:
    """Keep each attribute's true frequencies beside the data."""
    text = json.dumps({name: [float(f) for f in row] for name, row in frequencies.items()})
    write_durably(_path(directory, campaign), text)


def read_truth(directory: Path, campaign: str) -> dict[str, list[float]] | None:
    """The true frequencies by attribute, or None: then the campaign is real."""
    path = _path(directory, campaign)
    try:
        found = json.loads(path.read_bytes())
        return {str(name): [float(f) for f in row] for name, row in found.items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        raise StorageFailure(
            f"{path} does not hold a simulation's true frequencies; remove it, or simulate again"
        ) from None


def _path(directory: Path, campaign: str) -> Path:
    return directory / f"truth-{campaign}.json"
