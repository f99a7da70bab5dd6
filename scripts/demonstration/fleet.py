"""The demonstration's devices: real agents that hold what `population` says."""

from __future__ import annotations

import sys
from pathlib import Path

from simulation.agents import serve

from demonstration.population import value
from protocol_spec import Manifest


def main(root: Path, manifest_file: Path, broker: str, first: int, last: int) -> None:
    """Run devices first to last until told to stop."""
    manifest = Manifest.from_bytes(manifest_file.read_bytes())
    serve(root, manifest, broker, range(first, last), value)


if __name__ == "__main__":
    directory, file, url, begin, end = sys.argv[1:]
    main(Path(directory), Path(file), url, int(begin), int(end))
