"""The campaign, and the simulated truth: what every device really holds."""

from __future__ import annotations

import hashlib
import time
from itertools import accumulate

from protocol_spec import Manifest

HEATING = {"gas": 41, "heat pump": 24, "wood": 18, "oil": 12, "district": 5}


def manifest(
    devices: int, rounds: int, *, period_seconds: int, grace_seconds: int, lead_seconds: int
) -> Manifest:
    """Two attributes of different size, so that both L-GRR and L-OSUE are chosen."""
    heating = ", ".join(f'"{name}"' for name in HEATING)
    hours = ", ".join(f'"{hour:02d}:00"' for hour in range(24))
    return Manifest.from_toml(
        f"""
        format = 1
        slug = "demo"
        title = "How homes are heated, and when they rest"
        purpose = "Show the whole system at work with a simulated fleet"
        owner = "The demonstration"
        contact = "nobody@example.org"
        eps_inf = 4.0
        eps_1 = 1.5
        min_reports = {min(20, max(1, devices // 10))}
        receipt_pages = {max(1, devices // 200)}
        [rounds]
        first = {int(time.time()) + lead_seconds}
        period = {period_seconds}
        count = {rounds}
        grace = {grace_seconds}
        [[attributes]]
        name = "heating"
        question = "What heats your home?"
        values = [{heating}]
        otherwise = "{list(HEATING)[-1]}"
        [[attributes]]
        name = "quiet-hour"
        question = "In which hour is your home at its quietest?"
        values = [{hours}]
        otherwise = "23:00"
        """
    )


def readings(asked: Manifest, devices: int) -> dict[int, dict[str, str | float]]:
    """What every device's sources say."""
    names = [attribute.name for attribute in asked.attributes]
    return {device: {name: value(device, name) for name in names} for device in range(devices)}


def value(device: int, attribute: str) -> str:
    """What a device holds; the same at every call."""
    hashed = hashlib.sha256(f"{device} {attribute}".encode()).digest()
    chance = int.from_bytes(hashed[:8]) / 2**64
    if attribute == "heating":
        names, weights = list(HEATING), [float(w) for w in HEATING.values()]
    else:
        names = [f"{hour:02d}:00" for hour in range(24)]
        weights = [9.0 if hour in (2, 3) else 4.0 if hour < 6 else 1.0 for hour in range(24)]
    for name, edge in zip(names, accumulate(weights)):
        if chance * sum(weights) < edge:
            return name
    return names[-1]
