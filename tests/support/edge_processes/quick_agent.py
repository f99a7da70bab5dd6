"""`allomfree-edge run` with other pauses: a program of a configuration file and a `Timing`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edge_client.commands.report import serve
from edge_client.settings import resolve
from edge_client.timing import Timing
from protocol_spec.programs.logs import set_up


def main(config: str, timing: str) -> None:
    settings = resolve({}, config=Path(config))
    set_up(settings.log_level)
    serve(settings, Timing(**json.loads(timing)))


if __name__ == "__main__":
    main(*sys.argv[1:])
