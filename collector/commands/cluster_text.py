"""What is said about a cluster: which directory goes where, and how nodes take over a change."""

from __future__ import annotations

from collections.abc import Mapping


def start_text(nodes: Mapping[str, str]) -> str:
    """The first time, and whenever more than users has changed."""
    return "\n".join(
        [
            "Copy each directory to its machine, readable only for the user that runs NATS:",
            *_lines(nodes),
            "Start it there, in that directory:  nats-server -c nats.conf",
            "(If NATS runs there already, restart it: one machine after another.)",
        ]
    )


def reload_text(nodes: Mapping[str, str]) -> str:
    """After a change of users."""
    return "\n".join(
        [
            "The nodes do not know it yet. Copy users.conf from each directory to its machine:",
            *_lines(nodes),
            "Then, in that directory:  nats-server --signal reload=broker.pid",
        ]
    )


def _lines(nodes: Mapping[str, str]) -> list[str]:
    return [f"    {node}: {directory}" for node, directory in nodes.items()]
