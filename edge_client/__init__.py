"""The agent on a device: draws once, remembers for life, reports every round.

client.py          `EdgeClient`: everything an owner can do, for programs
device.py          what is remembered here, for looking at it
agent.py           deciding and drawing: every random choice is made here
reading.py         a value's place in its domain, and what stands for one that is not there
budget.py          what a source may still be charged, over all campaigns
daemon.py          the loop: which campaigns, when to draw, heartbeat
delivery.py        queued reports on their way, until receipts come
campaign_queue.py  one campaign's queued reports, and what became of them
connection.py      one broker: send, resend, reconnect
exchange.py        one question to a broker outside of the loop
store/             the memory: campaigns, memos, outbox, ledger
mqtt/              links to brokers, real and in memory
sources/           where a device's values come from
remembered.py      credentials given to `join`, each for one broker
language/          what the owner reads, in other languages
policy.py          what the owner allows
settings.py        flags, variables and the configuration file
commands/          the command line; __main__.py is its entry
show/              what the owner is shown
doctor.py          checks, each with the next step
heartbeat.py       what the running agent is doing, for other processes
records.py         what the rooms hand to each other
states.py          the words for problems and reports
clock.py           wall clock and steady clock
plausibility.py    whether the wall clock can be right
timing.py          how long the agent waits for what
trace.py           named points on the way, for tests
errors.py          the tree of errors and their exit codes
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from edge_client.client import EdgeClient, Reported
    from edge_client.errors import EdgeError
    from edge_client.policy import Policy
    from edge_client.records import Invitation
    from edge_client.status import ReportState
    from protocol_spec.programs.settings import Credentials
else:
    _PLACES: typing.Final = {
        "Credentials": "protocol_spec.programs.settings",
        "EdgeClient": "edge_client.client",
        "EdgeError": "edge_client.errors",
        "Invitation": "edge_client.records",
        "Policy": "edge_client.policy",
        "ReportState": "edge_client.status",
        "Reported": "edge_client.client",
    }

    def __getattr__(name: str) -> object:
        """What is public is loaded when it is asked for: `--version` need not wait for it."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_PLACES[name]), name)

    def __dir__() -> list[str]:
        return [*globals(), *_PLACES]


__all__ = [
    "Credentials",
    "EdgeClient",
    "EdgeError",
    "Invitation",
    "Policy",
    "ReportState",
    "Reported",
]
