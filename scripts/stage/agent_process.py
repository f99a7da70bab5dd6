"""Many real agents in one process, taking turns: the same code, state and wire as on a device.

It prints two lines of JSON: when all have joined, the attribute that each device drew; at the end,
what the process took of the machine.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from collector.brokers.credentials import CredentialFiles
from edge_client import EdgeClient, Policy
from protocol_spec import Manifest
from stage.memory import peak_memory_mib

TURN_SECONDS = 0.5  # between two turns of an agent, if the machine keeps up


def join(
    root: Path, manifest: Manifest, broker: str, device: int, secrets: Path | None
) -> EdgeClient:
    """One device: its own state directory, its own draw of an attribute, its own connection; and
    its own credential, if it was enrolled."""
    name = f"device-{device}"
    most = manifest.lifetime_epsilon
    policy = Policy(
        max_eps_inf=manifest.eps_inf,
        lifetime_budget=most,
        max_values=manifest.max_values,
        min_period=1,
        total_budget=most,
    )
    known = None if secrets is None else CredentialFiles(name, secrets / name).read()
    client = EdgeClient(root / name, policy=policy, credentials=known)
    client.join(
        client.invitation(manifest=manifest, broker=broker),
        device=None if secrets is None else name,
        accept_silence=manifest.campaign,
    )
    return client


def serve(
    root: Path,
    manifest: Manifest,
    broker: str,
    readings: Mapping[int, Mapping[str, object]],
    secrets: Path | None,
) -> None:
    """Run the devices until told to stop; `readings` has each one's values by attribute."""
    _allow_many_files()
    logging.getLogger("allomfree").addHandler(logging.NullHandler())
    logging.getLogger("allomfree").propagate = False
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    clients = {device: join(root, manifest, broker, device, secrets) for device in readings}
    drawn = {d: client.memberships()[0].attribute.name for d, client in clients.items()}
    runners = [client.runner(readings[device].__getitem__) for device, client in clients.items()]
    print(json.dumps(drawn), flush=True)
    while not stopping:
        began = time.monotonic()
        for runner in runners:
            runner.tick(wait=0.0)
        time.sleep(max(0.0, TURN_SECONDS - (time.monotonic() - began)))
    for runner, client in zip(runners, clients.values()):
        runner.close()
        client.close()
    print(json.dumps(_usage()))


def _allow_many_files() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _usage() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"memory_mib": peak_memory_mib(), "cpu_seconds": used.ru_utime + used.ru_stime}


def main(
    root: Path, manifest_file: Path, readings_file: Path, broker: str, secrets: Path | None
) -> None:
    """Run the devices that a file names."""
    manifest = Manifest.from_bytes(manifest_file.read_bytes())
    readings = json.loads(readings_file.read_text(encoding="utf-8"))
    by_device = {int(device): held for device, held in readings.items()}
    serve(root, manifest, broker, by_device, secrets)


if __name__ == "__main__":
    directory, manifest_path, readings_path, address, *more = sys.argv[1:]
    secret = Path(more[0]) if more else None
    main(Path(directory), Path(manifest_path), Path(readings_path), address, secret)
