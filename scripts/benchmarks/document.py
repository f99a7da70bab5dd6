"""Keeps `docs/benchmarks.md`: a section for each benchmark, all measured on one machine.

Measuring one benchmark again replaces its section. On another machine the others are dropped:
their numbers would stand under a description that is not theirs. Only errors of estimates are kept:
they do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Final

from benchmarks.measurements import Measurement, cells

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks.md"
ABOUT: Final = {
    "agent": "What the agent costs a device.",
    "startup": "What a short command costs a person who types it, or a monitor: CPU time of the "
    "whole process over that of `python -c pass`, in turns, in an environment without what an "
    "editable install adds to every start of Python. `status` shows a small campaign.",
    "ingest": "Durable exactly-once counting against a bare paho subscriber that only counts, on "
    "the same reports from the same broker, one after the other. Then the same counting over TLS "
    "against plain text, in turns, on NATS and on mosquitto. Into PostgreSQL counts one worker "
    "that pulls from NATS's own stream, as workers do, and leads. Wall time: under a load above "
    "the number of cores it says little.",
    "live": "Reports published through many connections while the collector counts them, each "
    "receipt listened for. The rate is from the first report sent to the last one committed and "
    "acknowledged. Publishers, broker and collector share the machine, and so do the bare "
    "mosquitto and paho that they are compared with: wall time, which says little under a load "
    "above the number of cores. Pages of receipts go out every two seconds. *Embedded NATS* has "
    "the configuration that the collector writes; another version, if one is named, has its own "
    "and its own collector, and the same publishers. One that syncs every message is as fast as "
    "the disk syncs: on one machine, from 135 to 3,300 reports a second.",
    "readers": "The same collector while people look at the analyst's page, and while nobody does. "
    "Wall time, because readers and ingest share the machine: under a load above the number of "
    "cores it says little.",
    "soak": "A collector that counts at a constant rate, over TLS, round after round, while one "
    "reader listens to its page's events and two refresh the page. Growth is the slope of Theil "
    "and Sen over the peaks of twenty blocks of the second half; a limit is broken when even the "
    "lower end of the slope's 95 % interval is above it. Picture: [pictures/soak.svg]"
    "(pictures/soak.svg).",
    "workers": "One, two and four workers that share one NATS and one PostgreSQL, each held to a "
    "share of a core by stopping it when it has had that; broker and database have the rest of the "
    "machine. Reports wait in the stream when the workers begin; the rate is that from the first "
    "tenth to the eighth. Wall time, so a busy machine shows less than there is.",
    "brokers": "What a report costs the broker: the reports of many devices come through one "
    "connection at full speed into the session of a reader that is away, and are then read by a "
    "bare paho subscriber. Processor time of the broker, of the three nodes together where there "
    "are three; the three run on this one machine. A device that connects, reports and leaves "
    "makes a whole TLS handshake where there is TLS. The memory of a connection is that of a "
    "device that says nothing.",
    "simulate": "One round of one attribute at each depth of the simulator. CPU time.",
    "peers": "The same work by other libraries, in an environment of their own, in turns with "
    "ours, on the same inputs. CPU time; a ratio is theirs over ours, so above 1 ours takes less. "
    "multi-freq-ldpy is called once a user, which is how its functions are made; its unary clients "
    "are compiled, so calling them from a loop that is compiled too is its fastest way and stands "
    "beside. pure-ldp has no longitudinal protocols (its RAPPOR leaves out the second step): its "
    "one-time GRR and OUE at `eps_1` are compared with ours. The simulator draws from a seeded "
    "generator, as the peers do. Devices draw from the operating system, 64 bits for "
    "every decision, which the peers do not, and pay for it. For errors the ratio is ours over "
    "theirs, so below 1 ours errs less; ± is a standard error.",
    "accuracy": "Errors of the ways of reporting at equal budgets; what they mean, and a picture: "
    "[mechanisms.md](mechanisms.md). A ratio is of mean squared errors; ± is a "
    "standard error. *Nested / memoized*: projected histograms after 5 and 20 rounds, about the "
    "devices that reported (privacy noise alone), every attribute of a data set, 200 runs. The "
    "limits are 15 % about values that were worked out beforehand with other code. *Beside "
    "ALLOMFREE*: the paper's metric on Adult. multi-freq-ldpy draws memo and report at once and "
    "keeps nothing, so its side is one round; ours are projected, and after 5 rounds of the same "
    "devices; `once` when all have answered. *Changing*: 5,000 devices, 6 values, 364 days, 8 "
    "changes a year to values drawn with the season; every report simulated, 3 years; raw "
    "estimates about the mean of the window, in percentage points. Intervals of `once` are those "
    "of the window. Beside LOLOHA (multi-freq-ldpy's `L_LH`): single days, on the same values. "
    "*Staying*: the same devices, if no value changed.",
}
ON_ANY_MACHINE: Final = ("accuracy",)
HEADING: Final = "# Benchmarks"
HOW: Final = (
    "Written by `scripts/benchmark.py … --write`. Ratios within one run say more than the numbers",
    "beside them, which are this machine's and promise nothing about another. In brackets: the",
    "least and the greatest of the repeats whose median is shown.",
)


def section(
    name: str, command: str, measured: Sequence[Measurement], load: str, versions: Mapping[str, str]
) -> str:
    """One benchmark's part of the page."""
    compared = ", ".join(f"{peer} {version}" for peer, version in versions.items())
    lines = [f"## {name}", "", fill(ABOUT[name], 100), "", f"    {command}", ""]
    lines += [f"Load of the machine when it began: {load}.", ""]
    lines += [f"Compared with {compared}.", ""] if compared else []
    lines += ["| what | measured | limit | verdict | note |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(cells(m)) + " |" for m in measured), ""])


def updated(page: str, machine: Mapping[str, str], name: str, text: str) -> str:
    """The page with one section put in its place, in the order of `ABOUT`."""
    head, found = _head(machine), _sections(page)
    if name in ON_ANY_MACHINE and page.startswith(HEADING):
        head = page.partition("\n## ")[0].rstrip("\n") + "\n"
    elif not page.startswith(head):
        found = {known: part for known, part in found.items() if known in ON_ANY_MACHINE}
    found[name] = text
    return "\n".join([head, *(found[known] for known in ABOUT if known in found)])


def _head(machine: Mapping[str, str]) -> str:
    rows = [f"| {what} | {text} |" for what, text in machine.items()]
    return "\n".join([HEADING, "", *HOW, "", "| machine | |", "|---|---|", *rows, ""])


def _sections(page: str) -> dict[str, str]:
    """The page's sections by name."""
    parts = page.split("\n## ")[1:]
    return {part.partition("\n")[0]: "## " + part.rstrip("\n") + "\n" for part in parts}
