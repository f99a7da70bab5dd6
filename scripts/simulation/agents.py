"""Many real agents in one process, taking turns: the same code, state and wire as on a device."""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from edge_client import EdgeClient, Policy
from edge_client.daemon import Runner
from protocol_spec import Manifest

TURN = 0.5  # seconds between two turns of an agent, if the machine keeps up

Value = Callable[[int, str], object]  # what a device holds of an attribute


def start(
    root: Path, manifest: Manifest, broker: str, device: int, value: Value
) -> tuple[EdgeClient, Runner]:
    """One device: its own state directory, its own draw of an attribute, its own connection."""
    policy = Policy(max_eps_inf=manifest.eps_inf, max_values=manifest.max_values)
    client = EdgeClient(root / f"device-{device}", policy=policy)
    client.join(client.invitation(manifest=manifest, broker=broker))
    return client, client.runner(lambda attribute: value(device, attribute))


def serve(
    root: Path, manifest: Manifest, broker: str, devices: Iterable[int], value: Value
) -> None:
    """Run devices until told to stop; say when all are there and what they drew, and at the end
    what they took of the machine."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    logging.getLogger("allomfree").addHandler(logging.NullHandler())
    logging.getLogger("allomfree").propagate = False
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    agents = {device: start(root, manifest, broker, device, value) for device in devices}
    drawn = {d: client.memberships()[0].attribute.name for d, (client, _) in agents.items()}
    print(json.dumps(drawn), flush=True)
    while not stopping:
        began = time.monotonic()
        for _, runner in agents.values():
            runner.tick(wait=0.0)
        time.sleep(max(0.0, TURN - (time.monotonic() - began)))
    for client, runner in agents.values():
        runner.close()
        client.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    memory = used.ru_maxrss / 1024
    print(json.dumps({"memory_mib": memory, "cpu_seconds": used.ru_utime + used.ru_stime}))


def main(root: Path, manifest_file: Path, broker: str, values_file: Path) -> None:
    """Run the devices that a file names, each with its values by attribute."""
    manifest = Manifest.from_bytes(manifest_file.read_bytes())
    held = {int(d): v for d, v in json.loads(values_file.read_text(encoding="utf-8")).items()}
    serve(root, manifest, broker, held, lambda device, attribute: held[device][attribute])


if __name__ == "__main__":
    directory, file, url, values = sys.argv[1:]
    main(Path(directory), Path(file), url, Path(values))
