"""Who may do what at the broker: least privilege, said once for every kind of broker.

A device writes its reports and requests, under its own name and nowhere else, and reads only what
is for all or for itself. A reader, such as a dashboard, reads what is for all and writes nothing
that anybody counts; its name is none that a device can have, so whatever a broker let it write
would not be counted. The collector cannot write reports, only markers, under a name that no device
can have. The auditor, which only `doctor` and the limits of NATS use, may do everything, but only
below names that no campaign can have: there it shows whether the others are kept to their limits.
(On mosquitto all can also read what every device can, because patterns apply to everyone.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol_spec.topics import (
    CANARY_CAMPAIGN,
    canary,
    everything_of,
    for_all,
    from_all_devices,
    from_device,
    marker,
    to_device,
)

COLLECTOR: Final = "Collector"  # capitals: no device can have such a name
AUDITOR: Final = "Auditor"
PROBE: Final = "doctor-probe"
READER: Final = "Reader-"  # what every reader's name begins with
READER_PROBE: Final = f"{READER}doctor"
BIRTH: Final = "homeassistant/status"  # where Home Assistant says that it is there, unless changed
EVERY_CAMPAIGN: Final = ("+",)
NO_CAMPAIGN: Final = f"{CANARY_CAMPAIGN}-closed"  # tried as a campaign that was never opened


class Role(StrEnum):
    """What kind of client a name at the broker is."""

    DEVICE = "device"
    COLLECTOR = "collector"
    AUDITOR = "auditor"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Access:
    """Topic filters, in MQTT's notation."""

    write: tuple[str, ...]
    read: tuple[str, ...]


def access(role: Role, name: str, namespace: str, *, home_assistant: str | None = None) -> Access:
    """What a name in a role may write and read."""
    if role is Role.DEVICE:
        return device_access(name, namespace)
    if role is Role.AUDITOR:
        tried = (CANARY_CAMPAIGN, NO_CAMPAIGN)
        everything = tuple(everything_of(campaign, namespace) for campaign in tried)
        return Access(everything, everything)
    if role is Role.READER:
        return reader_access(namespace, home_assistant)
    discovery = (f"{home_assistant}/device/+/config",) if home_assistant else ()
    return Access(
        (for_all(namespace), to_device("+", namespace), marker(namespace), *discovery),
        (for_all(namespace), *from_all_devices(namespace)),
    )


def reader_access(namespace: str, home_assistant: str | None = None) -> Access:
    """What a reader may do. Home Assistant also says, below its own prefix, that it is there: some
    brokers refuse it as a whole if they refuse its last will."""
    if not home_assistant:
        return Access((), (for_all(namespace),))
    written = dict.fromkeys((f"{home_assistant}/status", BIRTH))
    return Access(tuple(written), (for_all(namespace), f"{home_assistant}/#"))


def device_access(name: str, namespace: str, campaigns: Sequence[str] = EVERY_CAMPAIGN) -> Access:
    """What a device may write, in these campaigns, and read, in every one. `doctor` tries it on a
    topic of its own, which no collector reads."""
    written = [topic for known in campaigns for topic in from_device(name, namespace, known)]
    written.append(canary("up", name, "try", namespace=namespace))
    return Access(tuple(written), (for_all(namespace), to_device(name, namespace)))
