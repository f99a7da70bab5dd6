"""What the commands about the broker print: typed facts, and their text."""

from __future__ import annotations

from typing import Final, TypedDict

from collector.brokers.plan import Auth, Kind

_START: Final = {
    "mosquitto": "mosquitto -c {directory}/mosquitto.conf",
    "nats": "allomfree-collector run        (it starts the broker itself)",
}
_RELOAD: Final = {
    "mosquitto": "send mosquitto a SIGHUP, as in: systemctl reload mosquitto",
    "nats": "send nats-server a SIGHUP, or start the collector, which starts it",
}


class ConfiguredFacts(TypedDict):
    """What `broker-config --json` prints."""

    kind: Kind
    directory: str
    broker: str
    auth: Auth
    namespace: str
    enrolled: int
    authority_changed: bool
    reloaded: bool


class EnrolledDevice(TypedDict):
    """A device, and the directory to carry to it."""

    device: str
    credentials: str


class EnrolledFacts(TypedDict):
    """What `enrol --json` prints."""

    broker: str
    namespace: str
    enrolled: list[EnrolledDevice]
    reloaded: bool
    kind: Kind


class RevokedFacts(TypedDict):
    """What `revoke --json` prints; `kind` is None where no broker is configured here."""

    device: str
    revoked: bool
    enrolled: bool
    kind: Kind | None
    reloaded: bool


def configured_text(facts: ConfiguredFacts) -> str:
    """What was written, and what to do next."""
    start = _START[facts["kind"]].format(directory=facts["directory"])
    reloaded = "The broker has reloaded its configuration."
    changed = (
        "Devices enrolled before must trust another authority now: give each the new "
        f"{facts['directory']}/tls/trusted.crt as its ca.crt.\n"
    )
    return (
        f"Wrote {facts['kind']}'s configuration, access list and credentials (by "
        f"{facts['auth']}) into {facts['directory']}.\n"
        f"Devices connect to {facts['broker']}; {facts['enrolled']} are enrolled.\n"
        f"{changed if facts['authority_changed'] else ''}"
        f"{reloaded if facts['reloaded'] else f'Start it:  {start}'}\n"
        "Enrol:     allomfree-collector enrol --count 1\n"
        "Check it:  allomfree-collector doctor"
    )


def enrolled_text(facts: EnrolledFacts) -> str:
    """Where the credentials are, and what to do with them."""
    address = f"{facts['broker']}/{facts['namespace']}/CAMPAIGN"
    return "\n".join(
        [
            *(f"{row['device']}: {row['credentials']}" for row in facts["enrolled"]),
            "Copy each directory to its device as /etc/allomfree, then delete it here.",
            f"Then, on the device:  allomfree-edge join {address}",
            _reloaded(facts["reloaded"], facts["kind"]),
        ]
    )


def revoked_text(facts: RevokedFacts) -> str:
    """What the device can no longer do, or can do again."""
    device = facts["device"]
    if facts["revoked"]:
        lines = [f"{device} is revoked: its reports are refused."]
        credential = "Its credential for the broker is no longer valid."
    else:
        lines = [f"{device} is no longer revoked: its reports are counted again."]
        credential = "Its credential for the broker is valid again."
    if facts["enrolled"] and facts["kind"] is not None:
        return "\n".join([*lines, credential, _reloaded(facts["reloaded"], facts["kind"])])
    lines.append("It was not enrolled here: whoever runs the broker manages its credential.")
    return "\n".join(lines)


def _reloaded(done: bool, kind: Kind) -> str:
    if done:
        return "The broker has reloaded its configuration."
    return f"The broker must reload its configuration: {_RELOAD[kind]}"
