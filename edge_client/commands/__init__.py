"""The commands of `allomfree-edge`, thin layers over `EdgeClient`; all are registered here.

join        join
report      run, report
campaigns   pause, resume, leave, forget
show        show, status, doctor
common      the client that settings describe, and a question to the owner
options     the decorator that makes a command, and what several commands take

Exit codes: 0 done, 1 something at run time, 2 settings, 3 refused by the owner or the policy.
"""

from __future__ import annotations

import click

from edge_client.commands import campaigns, join, report, show
from protocol_spec.programs.commands import STYLE, Program, version_option

COMMANDS = (
    join.join,
    show.show,
    show.status,
    report.run,
    report.report,
    campaigns.pause,
    campaigns.resume,
    campaigns.leave,
    campaigns.forget,
    show.doctor,
)


@click.group("allomfree-edge", cls=Program, context_settings=STYLE, commands=COMMANDS)
@version_option("allomfree-edge")
def main() -> None:
    """Report to campaigns under local differential privacy, and see exactly what leaves.

    \b
    allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d
    allomfree-edge run
    """
