"""Who may do what at the broker: least privilege, said once for every kind of broker.

A device writes only under its own name and reads only what is for all or for itself; the collector
cannot write reports. The auditor, which only `doctor` uses, may do everything, but only below a
name that no campaign can have: there it shows whether the others are kept to their limits. (On
mosquitto it can also read what every device can, because patterns apply to everyone.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol_spec.topics import CANARY_CAMPAIGN, everything_of, for_all, from_device, to_device

COLLECTOR: Final = "Collector"  # capitals: no device can have such a name
AUDITOR: Final = "Auditor"
PROBE: Final = "doctor-probe"


class Role(StrEnum):
    """What kind of client a name at the broker is."""

    DEVICE = "device"
    COLLECTOR = "collector"
    AUDITOR = "auditor"


@dataclass(frozen=True, slots=True)
class Access:
    """Topic filters, in MQTT's notation."""

    write: tuple[str, ...]
    read: tuple[str, ...]


def access(role: Role, name: str, namespace: str, *, home_assistant: str | None = None) -> Access:
    """What a name in a role may write and read."""
    if role is Role.DEVICE:
        return Access(
            (from_device(name, namespace),), (for_all(namespace), to_device(name, namespace))
        )
    if role is Role.AUDITOR:
        everything = (everything_of(CANARY_CAMPAIGN, namespace),)
        return Access(everything, everything)
    discovery = (f"{home_assistant}/device/+/config",) if home_assistant else ()
    return Access(
        (for_all(namespace), to_device("+", namespace), *discovery),
        (for_all(namespace), from_device("+", namespace)),
    )
