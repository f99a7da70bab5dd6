"""What the commands about the broker say."""

from __future__ import annotations

from typing import Any, Final

_START: Final = {
    "mosquitto": "mosquitto -c {directory}/mosquitto.conf",
    "nats": "allomfree-collector run        (it starts the broker itself)",
}
_RELOAD: Final = {
    "mosquitto": "send mosquitto a SIGHUP, as in: systemctl reload mosquitto",
    "nats": "send nats-server a SIGHUP, or start the collector, which starts it",
}


def configured_text(facts: dict[str, Any]) -> str:
    """After broker-config."""
    start = _START[facts["kind"]].format(directory=facts["directory"])
    next_steps = "The broker has taken it over." if facts["reloaded"] else f"Start it:  {start}"
    changed = (
        "Devices enrolled before must trust another authority now: give each the new "
        f"{facts['directory']}/tls/trusted.crt as its ca.crt.\n"
    )
    return (
        f"Wrote {facts['kind']}'s configuration, access list and credentials (by "
        f"{facts['auth']}) into {facts['directory']}.\n"
        f"Devices reach it at {facts['broker']}; {facts['enrolled']} are enrolled.\n"
        f"{changed if facts['authority_changed'] else ''}"
        f"{next_steps}\n"
        "Enrol:     allomfree-collector enrol --count 1\n"
        "Prove it:  allomfree-collector doctor"
    )


def enrolled_text(facts: dict[str, Any]) -> str:
    """After enrol."""
    rows = [f"{row['device']}: {row['credentials']}" for row in facts["enrolled"]]
    address = f"{facts['broker']}/{facts['namespace']}/CAMPAIGN"
    return "\n".join(
        [
            *rows,
            "Carry each directory to its device as /etc/allomfree, then delete it here.",
            f"Then, on the device:  allomfree-edge join {address}",
            _taken(facts),
        ]
    )


def revoked_text(facts: dict[str, Any]) -> str:
    """After revoke."""
    device = facts["device"]
    if facts["revoked"]:
        lines = [f"{device} is revoked: its reports are refused."]
        taken = "Its credential for the broker is taken back."
    else:
        lines = [f"{device} is welcome again."]
        taken = "Its credential for the broker is good again."
    if facts["enrolled"]:
        return "\n".join([*lines, taken, _taken(facts)])
    lines.append("It is not enrolled here: its credential is a matter of whoever runs the broker.")
    return "\n".join(lines)


def _taken(facts: dict[str, Any]) -> str:
    if facts["reloaded"]:
        return "The broker has taken it over."
    return f"The broker must be told: {_RELOAD[facts['kind']]}"
