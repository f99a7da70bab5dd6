"""The verbs of `allomfree-edge`: thin layers over `EdgeClient`, one file per group.

join.py       join
report.py     run, report
campaigns.py  pause, resume, leave, forget
show.py       show, status, doctor
common.py     what they share

Exit codes: 0 done, 1 something at run time, 2 settings, 3 refused by the owner or the policy.
A new verb is a function of `Settings` in one of these files, and a name in `VERBS`.
"""

from __future__ import annotations

from typing import Final

import click

from edge_client.commands.campaigns import forget, leave, pause, resume
from edge_client.commands.join import join
from edge_client.commands.report import report, run
from edge_client.commands.show import doctor, show, status
from edge_client.settings import SETTINGS, resolve
from protocol_spec.programs.commands import STYLE, Program, command_of, version_option

VERBS: Final = (join, show, status, run, report, pause, resume, leave, forget, doctor)


def program() -> click.Group:
    """The whole command line."""

    @click.group("allomfree-edge", cls=Program, context_settings=STYLE)
    @version_option("allomfree-edge")
    def edge() -> None:
        """Report to campaigns under local differential privacy, and see exactly what leaves.

        \b
        allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d
        allomfree-edge run
        """

    add = command_of(SETTINGS, resolve, "edge", edge)
    for verb in VERBS:
        add(verb)
    return edge
