"""The commands of `allomfree-edge`, thin layers over `EdgeClient`; all are listed here.

Only the module of the command that is typed is loaded. Exit codes: 0 done, 1 something at run time,
2 settings, 3 refused by the owner or the policy.
"""

from __future__ import annotations

from typing import Final

import click

from protocol_spec.programs.cli import STYLE, Program, Verbs, version_option

# What is typed, the module here that does it, and the first line of its docstring.
COMMANDS: Final = Verbs(
    __name__,
    "",
    ("join", "join", "Read what a campaign asks, and agree to it or not."),
    ("show", "owner", "Show what left, what is queued, what never leaves, and the ledger."),
    ("page", "owner", "Show the statement as a page in a browser on this machine, until stopped."),
    ("status", "owner", "Show the agent's status."),
    ("run", "report", "Report every round until stopped: for systemd, or in the foreground."),
    ("report", "report", "Report this round once and exit: for cron and battery-powered devices."),
    ("pause", "owner", "Draw and send nothing until resumed."),
    ("resume", "owner", "Go on after pause or leave."),
    ("leave", "owner", "Stop for good, keeping the memory so that rejoining reveals nothing new."),
    (
        "forget",
        "owner",
        "Withdraw what can be withdrawn, wipe the memory, and verify; the ledger keeps its line.",
    ),
    (
        "doctor",
        "doctor",
        "Check state, clock, sources, brokers and policy, and name the next step.",
    ),
)


@click.group("allomfree-edge", cls=Program, context_settings=STYLE, commands=COMMANDS)
@version_option("allomfree-edge")
def main() -> None:
    """Report to campaigns under local differential privacy, and see exactly what leaves.

    \b
    allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f809
    allomfree-edge run
    """
