"""The agent on a device: draws once, remembers for life, reports every round.

client.py       `EdgeClient`: everything an owner can do, for programs
agent.py        deciding and drawing: every random choice is made here; `DeviceState` for inspection
policy.py       what the owner allows, and what a source may still be charged
clock.py        wall clock and boot-time clock, and whether the wall clock can be right
store/          the memory: campaigns, memos, outbox, ledger
daemon.py       the loop: which campaigns, when to draw
delivery.py     queued reports on their way, until receipts come
link.py         one connection to a broker, and who is shown which credentials
exchange.py     one question to a broker outside of the loop
credentials.py  credentials given to `join`, each for one broker
sources.py      where a device's values come from
statement.py    what left and what it cost, as facts; explain.py, text.py, page.py: in words
language/       what the owner reads, in other languages
status.py       what the running agent is doing, for other processes
settings.py     flags, variables and the configuration file
cli/            the command line; __main__.py is its entry
records.py      what the modules pass to each other
errors.py       the tree of errors and their exit codes
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
        """Load public names on first use: `--version` need not wait for them."""
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
