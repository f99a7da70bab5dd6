"""Many real agents in one process, taking turns: the same code, state and wire as on a device."""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
import time
from pathlib import Path

from demonstration.population import value
from edge_client import EdgeClient, Policy
from edge_client.runner import Runner
from protocol_spec import Manifest


def start(root: Path, manifest: Manifest, broker: str, device: int) -> tuple[EdgeClient, Runner]:
    """One device: its own state directory, its own draw of an attribute, its own connection."""
    client = EdgeClient(root / f"device-{device}", policy=Policy(max_eps_inf=4.0))
    client.join(client.invitation(manifest=manifest, broker=broker))
    return client, client.runner(lambda attribute: value(device, attribute))


def main(root: Path, manifest_file: Path, broker: str, first: int, last: int) -> None:
    """Run devices first to last until told to stop; say when all are there, and what they drew."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    logging.getLogger("allomfree").addHandler(logging.NullHandler())
    logging.getLogger("allomfree").propagate = False
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    manifest = Manifest.from_bytes(manifest_file.read_bytes())
    agents = [start(root, manifest, broker, device) for device in range(first, last)]
    drawn = {
        device: client.memberships()[0].attribute.name
        for device, (client, _) in enumerate(agents, start=first)
    }
    print(json.dumps(drawn), flush=True)
    while not stopping:
        began = time.monotonic()
        for _, runner in agents:
            runner.tick(wait=0.0)
        time.sleep(max(0.0, 0.2 - (time.monotonic() - began)))
    for client, runner in agents:
        runner.close()
        client.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    memory = used.ru_maxrss / 1024
    print(json.dumps({"memory_mib": memory, "cpu_seconds": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    directory, file, url, begin, end = sys.argv[1:]
    main(Path(directory), Path(file), url, int(begin), int(end))
