"""The agent on a device: draws once, remembers for life, reports every round.

client.py          `EdgeClient`: everything an owner can do, for programs
agent.py           deciding and drawing: every random choice is made here
budget.py          what a source may still be charged, over all campaigns
daemon.py          the loop: which campaigns, when to draw, heartbeat
delivery.py        queued reports on their way, until receipts come
campaign_queue.py  one campaign's queued reports, and what became of them
connection.py      one broker: send, resend, reconnect
exchange.py        one question to a broker outside of the loop
store/             the memory: campaigns, memos, outbox, ledger
mqtt/              links to brokers, real and in memory
sources/           where a device's values come from
policy.py          what the owner allows
settings.py        flags, variables and the configuration file
commands/          the command line; __main__.py is its entry
show/              what the owner is shown
doctor.py          checks, each with the next step
heartbeat.py       what the running agent is doing, for other processes
records.py         what the rooms hand to each other
states.py          the words for problems and reports
clock.py           wall clock and steady clock
timing.py          how long the agent waits for what
trace.py           named points on the way, for tests
errors.py          the tree of errors and their exit codes
"""

from edge_client.client import EdgeClient, Reported
from edge_client.errors import EdgeError
from edge_client.policy import Policy
from edge_client.records import Invitation
from edge_client.states import ReportState
from protocol_spec.programs.address import Credentials

__all__ = [
    "Credentials",
    "EdgeClient",
    "EdgeError",
    "Invitation",
    "Policy",
    "ReportState",
    "Reported",
]
