"""`allomfree-edge run` with other pauses: a program of a configuration file and a `Timing`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edge_client.cli.report import serve
from edge_client.records import Timing
from edge_client.settings import resolve
from protocol_spec.programs.output import set_up_logging


def main(config: str, timing: str) -> None:
    settings = resolve({}, config=Path(config))
    set_up_logging(settings.log_level)
    serve(settings, Timing(**json.loads(timing)))


if __name__ == "__main__":
    main(*sys.argv[1:])
