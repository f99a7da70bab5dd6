"""Real agents in a process that can be killed -9: each with its own memory and connection."""

from __future__ import annotations

import sys
from pathlib import Path

from edge_client import EdgeClient
from edge_client.daemon import Runner
from edge_client.link import PahoLink
from edge_client.records import Queued, Timing
from protocol_spec import Manifest
from tests.support.edge import ROOMY, runner_of
from tests.support.edge_processes import environment
from tests.support.killable_agents import trusting_link
from tests.support.warm_starts import WarmProcess

TIMING = Timing(
    resend_seconds=1.0, receipt_seconds=0.1, reconnect_seconds=0.2, reconnect_longest_seconds=0.5
)


class Fleet:
    """The process below, and what its agents remember."""

    def __init__(
        self, root: Path, manifest: Manifest, broker: str, names: list[str], *, naive: bool = False
    ) -> None:
        self.root = root
        self.names = names
        self._command = [sys.executable, "-m", __name__, str(root), str(int(naive)), *names]
        root.mkdir(exist_ok=True)
        for name in names:
            _join(root / name, manifest, broker)
        self.process: WarmProcess | None = None

    def start(self) -> None:
        with (self.root / "log").open("ab") as log:
            self.process = WarmProcess(self._command, environment(), stderr=log.fileno())

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            assert self.process.poll() is None, (self.root / "log").read_text()
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def outbox(self) -> dict[str, list[Queued]]:
        """Every report that every device ever drew, by the device's own memory."""
        return {name: _outbox(self.root / name) for name in self.names}

    @property
    def has_delivered(self) -> bool:
        """Whether every device has drawn something, and nothing waits for a receipt."""
        return all(
            rows and all(row.fate != "queued" for row in rows) for rows in self.outbox().values()
        )


def _join(state: Path, manifest: Manifest, broker: str) -> None:
    with EdgeClient(state, policy=ROOMY) as client:
        client.join(
            client.invitation(manifest=manifest, broker=broker),
            device=state.name,
        )


def _outbox(state: Path) -> list[Queued]:
    with EdgeClient(state, exclusive=False) as client:
        return client.store.reports(client.find().name)


def _start(state: Path, naive: bool) -> Runner:
    """Reports at the first moment of each round."""
    client = EdgeClient(state)
    link = trusting_link(client.find().manifest) if naive else PahoLink
    read = lambda _: client.find().attribute.values[0]  # noqa: E731
    return runner_of(client.agent, read, make_link=link, timing=TIMING)


def main(root: Path, naive: str, *names: str) -> None:
    """Run until killed."""
    agents = [_start(root / name, naive == "1") for name in names]
    while True:
        for carrier in agents:
            carrier.tick(wait=0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
