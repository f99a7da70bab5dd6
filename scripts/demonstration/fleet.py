"""The demonstration's agents: some devices of its population in one process."""

from __future__ import annotations

import sys
from pathlib import Path

from demonstration.population import value
from protocol_spec import Manifest
from simulation.agents import serve

if __name__ == "__main__":
    directory, file, url, first, last = sys.argv[1:]
    manifest = Manifest.from_bytes(Path(file).read_bytes())
    serve(Path(directory), manifest, url, range(int(first), int(last)), value)
