"""Real agents in a process that can be killed -9, and what they remember."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edge_client import EdgeClient, Policy
from edge_client.records import Queued, Timing
from faults.campaigns import AGENTS
from protocol_spec import Manifest
from protocol_spec.programs.settings import Credentials
from testbed.processes import Process

TIMING: Final = Timing(step=0.2, resend=2.0, resend_longest=4.0, reconnect=0.5, reconnect_longest=2)
KEEPALIVE_SECONDS: Final = 10
TURN_SECONDS: Final = 0.2


class Agents:
    """A process of agents; a state directory each."""

    def __init__(
        self, place: Path, clock: Path, manifest: Manifest, names: Sequence[str], authority: str
    ) -> None:
        self.place = place
        self.names = names
        self._manifest = manifest
        self._drawn: dict[str, dict[tuple[int, bytes], Queued]] = {name: {} for name in names}
        program = [sys.executable, "-m", "faults.clock", str(clock), __file__]
        command = [*program, str(place), authority, *names]
        place.mkdir(parents=True)
        self.process = Process("a process of agents", command, place / "log")

    def join(self, broker: str) -> None:
        """Every device draws its attribute; once, before anything fails."""
        policy = Policy(max_eps_inf=self._manifest.eps_inf, min_period=1)
        for name in self.names:
            with EdgeClient(self.place / name, policy=policy) as client:
                client.join(client.invitation(manifest=self._manifest, broker=broker), device=name)

    def look(self) -> None:
        """Note what was drawn: a device forgets what it sent in rounds long past."""
        for name, known in self._drawn.items():
            known |= {(row.round, row.payload): row for row in _outbox(self.place / name)}

    def drawn(self) -> dict[str, list[Queued]]:
        """Every report that every device ever drew, by the device's own memory."""
        self.look()
        return {name: list(known.values()) for name, known in self._drawn.items()}

    @property
    def have_delivered(self) -> bool:
        """Whether nothing waits for a receipt."""
        rows = (row for name in self.names for row in _outbox(self.place / name))
        return not any(row.fate == "queued" for row in rows)


def _outbox(state: Path) -> list[Queued]:
    with EdgeClient(state, exclusive=False) as client:
        return client.store.outbox.rows(client.find(AGENTS).name)


def main(place: Path, authority: str, names: Sequence[str]) -> None:
    """Run until killed."""
    logging.getLogger("allomfree").addHandler(logging.NullHandler())
    logging.getLogger("allomfree").propagate = False
    runners = []
    for name in names:
        client = EdgeClient(
            place / name,
            policy=Policy(min_period=1),
            credentials=Credentials(ca_file=authority or None),
            keepalive=KEEPALIVE_SECONDS,
            timing=TIMING,
        )
        runners.append(client.runner(lambda _: "green"))
    while True:
        for runner in runners:
            runner.tick(wait=0.0)
        time.sleep(TURN_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
