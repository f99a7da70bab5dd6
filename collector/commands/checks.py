"""Checks: is the running collector well (`health`), and everything around it (`doctor`)?

Containers run `health` every few seconds, so nothing heavy is imported here.
"""

from __future__ import annotations

import sys

from collector.commands.options import command, show
from collector.health import examine, findings
from collector.settings import Settings
from protocol_spec.programs.cli import AS_JSON


@command
@AS_JSON
def health(settings: Settings, as_json: bool) -> None:
    """Exit 0 if the collector is connected and counting.

    Otherwise say why not, and exit 1. Warnings are what will become a fault.

    \b
    allomfree-collector health
    """
    found = examine(settings.data_dir)
    lines = findings(settings.data_dir, found)
    facts = found.facts() | {"findings": [each.facts() for each in lines]}
    show(facts, as_json, lambda _: "\n".join(map(str, lines)))
    sys.exit(0 if found.well else 1)


@command
@AS_JSON
def doctor(settings: Settings, as_json: bool) -> None:
    """Check data, key, broker and campaigns, and say what to do.

    \b
    allomfree-collector doctor --broker mqtts://broker.example
    """
    from collector.doctor import examine_all  # noqa: PLC0415 - loads the MQTT client

    found = examine_all(settings)
    show([f.facts() for f in found], as_json, lambda _: "\n".join(map(str, found)))
    if any(not f.ok for f in found):
        sys.exit(1)
