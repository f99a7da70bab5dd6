"""What the commands about the broker print: typed facts, and their text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final, TypedDict

from collector.brokers.access import READER
from collector.brokers.plan import Auth, Kind
from collector.commands import cluster_text

_RELOAD: Final = "send mosquitto a SIGHUP, as in: systemctl reload mosquitto"
_NEXT_START: Final = (
    "The broker uses it from its next start: allomfree-collector run\n(If the collector runs "
    "already, restart it.)"
)
_RESTART: Final = (
    "mosquitto must be RESTARTED to use it, as in: systemctl restart mosquitto. Until then it "
    "listens as before.\n"
)
_AS_ROOT: Final = (
    "\nThese files are root's, so mosquitto runs as root, too. Better: give the collector a user "
    "of its own, and run this as that user."
)
_EVERYWHERE: Final = (
    "ATTENTION: it listens on EVERY interface of this machine, whatever networks it is in. For one "
    "network only, run this again with --bind ADDRESS.\n"
)
_STREAM: Final = "Workers pull reports with --stream {}, once the broker was started anew.\n"
_ALONE: Final[Mapping[str, str]] = {}
_ONE_ADDRESS: Final = "It listens on {} only.\n"


class ConfiguredFacts(TypedDict):
    """What `broker-config --json` prints."""

    kind: Kind
    directory: str
    broker: str
    auth: Auth
    namespace: str
    stream: str | None
    listens_on: str
    enrolled: int
    authority_changed: bool
    reloaded: bool
    restart: bool
    run_as: str | None
    nodes: dict[str, str]


class EnrolledDevice(TypedDict):
    """A device, and the directory to carry to it."""

    device: str
    credentials: str


class EnrolledReader(TypedDict):
    """A reader, and the directory with its credential."""

    reader: str
    credentials: str


class EnrolledFacts(TypedDict):
    """What `enrol --json` prints; `nodes` are the directories of a cluster's."""

    broker: str
    namespace: str
    enrolled: list[EnrolledDevice]
    readers: list[EnrolledReader]
    home_assistant: str | None
    reloaded: bool
    kind: Kind
    nodes: dict[str, str]


class RevokedFacts(TypedDict):
    """What `revoke --json` prints; `kind` is None where no broker is configured here."""

    device: str
    revoked: bool
    changed: bool
    enrolled: bool
    similar: list[str]
    kind: Kind | None
    reloaded: bool
    nodes: dict[str, str]


def configured_text(facts: ConfiguredFacts) -> str:
    """What was written, and what to do next."""
    changed = (
        "Devices enrolled before must trust another authority now: give each the new "
        f"{facts['directory']}/tls/trusted.crt as its ca.crt.\n"
    )
    return (
        f"Wrote {facts['kind']}'s configuration, access list and credentials (by "
        f"{facts['auth']}) into {facts['directory']}.\n"
        f"Devices connect to {facts['broker']}; {facts['enrolled']} are enrolled.\n"
        f"{_STREAM.format(facts['stream']) if facts['stream'] else ''}"
        f"{_where(facts)}"
        f"{changed if facts['authority_changed'] else ''}"
        f"{_start_text(facts)}"
        f"Enrol:     allomfree-collector enrol --count 1\n"
        f"Check it:  allomfree-collector doctor"
    )


def _where(facts: ConfiguredFacts) -> str:
    if facts["nodes"]:
        return ""
    everywhere = facts["listens_on"] == "every interface"
    return _EVERYWHERE if everywhere else _ONE_ADDRESS.format(facts["listens_on"])


def _start_text(facts: ConfiguredFacts) -> str:
    """How it comes into use, if it is not already."""
    if facts["reloaded"]:
        return "The running broker uses it now.\n"
    if facts["nodes"]:
        return f"{cluster_text.start_text(facts['nodes'])}\n"
    if facts["restart"]:
        return _RESTART
    if facts["kind"] == "mosquitto":
        who = _AS_ROOT if facts["run_as"] == "root" else ""
        return f"Start it:  mosquitto -c {shlex.quote(facts['directory'])}/mosquitto.conf{who}\n"
    return "Start it:  allomfree-collector run        (it starts the broker itself)\n"


def enrolled_text(facts: EnrolledFacts) -> str:
    """Where the credentials are, and what to do with them."""
    address = f"{facts['broker']}/{facts['namespace']}/CAMPAIGN"
    devices = [
        *(f"{row['device']}: {row['credentials']}" for row in facts["enrolled"]),
        "Copy each directory to its device as /etc/allomfree, then delete it here.",
        f"Then, on the device:  allomfree-edge join {address}",
    ]
    return "\n".join(
        [
            *(devices if facts["enrolled"] else []),
            *(line for row in facts["readers"] for line in _reader_lines(facts, row)),
            _reloaded(facts["reloaded"], facts["kind"], facts["nodes"]),
        ]
    )


def _reader_lines(facts: EnrolledFacts, row: EnrolledReader) -> list[str]:
    """What somebody types into a dashboard."""
    host, _, port = facts["broker"].removeprefix("mqtts://").rpartition(":")
    place, prefix = row["credentials"], facts["home_assistant"]
    lines = [
        f"{row['reader']}: {place}",
        f"It may read {facts['namespace']}/v1/+/pub/# and can never report.",
        f"Connect it to host {host}, port {port}, with TLS, as user {row['reader']};",
        f"its password or certificate, and the authority to trust, are in {place}.",
    ]
    if prefix:
        lines.append(
            "In Home Assistant: Settings, Devices & services, Add integration, MQTT. Campaigns "
            f"appear as devices, announced below {prefix}/."
        )
    return lines


def revoked_text(facts: RevokedFacts) -> str:
    """What the device can no longer do, or can do again."""
    device, reader = facts["device"], facts["device"].startswith(READER)
    if not facts["changed"]:
        return (
            f"{device} was not revoked; nothing was changed."
            if not facts["revoked"]
            else (f"{device} was revoked already.")
        )
    if facts["revoked"]:
        lines = [] if reader else [f"{device} is revoked: its reports are refused."]
        credential = "Its credential for the broker is no longer valid."
    else:
        lines = [] if reader else [f"{device} is no longer revoked: its reports are counted again."]
        credential = "Its credential for the broker is valid again."
    if facts["enrolled"] and facts["kind"] is not None:
        return "\n".join(
            [*lines, credential, _reloaded(facts["reloaded"], facts["kind"], facts["nodes"])]
        )
    return "\n".join([*lines, *_unknown_lines(facts)])


def _unknown_lines(facts: RevokedFacts) -> list[str]:
    """Nobody of that name was enrolled here: it may be a typing error."""
    device = facts["device"]
    elsewhere = "whoever runs the broker manages its credential."
    if not facts["revoked"]:
        return [f"It was not enrolled here: {elsewhere}"]
    near = f" Did you mean {' or '.join(facts['similar'])}?" if facts["similar"] else ""
    nobody = f"But NO DEVICE {device} was enrolled here.{near}"
    if facts["kind"] is None:
        nobody = f"No device {device} was enrolled here: {elsewhere}"
    return [
        f"{nobody} If the name is wrong, take it back:",
        f"    allomfree-collector revoke {device} --undo",
    ]


def must_reload_text(kind: Kind) -> str:
    """For a change that the broker cannot be told of from here."""
    return _reloaded(False, kind)


def _reloaded(done: bool, kind: Kind, nodes: Mapping[str, str] = _ALONE) -> str:
    if done:
        return "The running broker uses it now."
    if nodes:
        return cluster_text.reload_text(nodes)
    if kind == "nats":
        return _NEXT_START
    return f"The broker must reload its configuration: {_RELOAD}"
