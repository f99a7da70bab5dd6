"""The durable consumer that workers share, on NATS's own stream of what MQTT clients publish.

What it has to be like, and what is wrong with one that is found: for workers, and for `doctor`.
"""

from __future__ import annotations

from typing import Any, Final

from collector.mqtt import BATCH
from protocol_spec.programs.output import shown
from protocol_spec.topics import from_all_devices

STREAM: Final = "$MQTT_msgs"
PREFIX: Final = "$MQTT.msgs."
ACK_SECONDS: Final = 30
IN_FLIGHT: Final = 16 * BATCH  # delivered to some worker and not acknowledged yet
SECOND: Final = 10**9  # in nanoseconds
NO_CONSUMER: Final = 10014
_NO_STREAM: Final = 10059


def consumer_name(namespace: str) -> str:
    """The durable consumer that the workers of a namespace share."""
    return f"{namespace}-collectors"


def inbox(namespace: str) -> str:
    """What the subjects begin with at which workers hear answers."""
    return f"_INBOX_{namespace}"


def needed(namespace: str) -> tuple[list[str], list[str]]:
    """Subjects that a worker's user must be allowed to publish to, and to subscribe to."""
    consumer = consumer_name(namespace)
    api = (
        f"STREAM.INFO.{STREAM}",
        f"CONSUMER.CREATE.{STREAM}.{consumer}",
        f"CONSUMER.INFO.{STREAM}.{consumer}",
        f"CONSUMER.MSG.NEXT.{STREAM}.{consumer}",
    )
    write = [*(f"$JS.API.{each}" for each in api), f"$JS.ACK.{STREAM}.{consumer}.>"]
    return write, [f"{inbox(namespace)}.>"]


def consumer_settings(namespace: str) -> dict[str, Any]:
    """What the consumer must be like; the rest an operator may change.

    One filter, though it lets through more than devices send: with two, and many devices, NATS
    looks through all subjects for every message beyond its first block of 8 MB.
    """
    (wanted,) = {f"{name.rpartition('.')[0]}.*" for name in subjects_of_devices(namespace)}
    return {"ack_policy": "explicit", "max_deliver": -1, "filter_subjects": [wanted]}


def subjects_of_devices(namespace: str) -> list[str]:
    """What devices publish, as NATS names it."""
    return [
        PREFIX + name.replace("/", ".").replace("+", "*") for name in from_all_devices(namespace)
    ]


def stream_fault(info: dict[str, Any]) -> str | None:
    """Why a stream cannot be used, from the server's answer to the question for it."""
    code = code_of(info)
    if code == _NO_STREAM:
        return (
            f"it has no stream {STREAM}. NATS makes it for the first MQTT client of the same "
            "account: has the leader connected, and is its MQTT port switched on?"
        )
    if code:
        return refused(info, "stream")
    config = info.get("config")
    if (config.get("subjects") if isinstance(config, dict) else None) != [f"{PREFIX}>"]:
        return (
            f"its stream {STREAM} belongs to somebody else: it does not hold what MQTT clients "
            "publish. Use the account that devices use"
        )
    return None


def consumer_fault(info: dict[str, Any], namespace: str) -> str | None:
    """Why a consumer cannot be used, from the server's answer to the question for it."""
    if code_of(info):
        return refused(info, "consumer")
    found = info.get("config")
    known = found if isinstance(found, dict) else {}
    known = known | {"filter_subjects": filters_of(known)}
    wanted = consumer_settings(namespace)
    other = [name for name, value in wanted.items() if known.get(name) != value]
    if known.get("deliver_subject"):
        other.append("deliver_subject")
    if not other:
        return None
    return (
        f"its consumer {consumer_name(namespace)} belongs to somebody else, or was changed: "
        f"{', '.join(other)}. Nothing was changed; delete it if nobody needs it, and it is made "
        "anew, or choose another --namespace"
    )


def refused(info: dict[str, Any], what: str) -> str:
    """What the server said instead of an answer."""
    error = info["error"]
    said = shown(str(error.get("description", "") if isinstance(error, dict) else error))
    return f"it refused the {what} ({said})"


def filters_of(config: object) -> object:
    """What a consumer delivers; one filter may stand under another name."""
    known = config if isinstance(config, dict) else {}
    one = known.get("filter_subject")
    return known.get("filter_subjects") or ([one] if one else None)


def code_of(info: dict[str, Any]) -> int:
    """The code of an error; 0 without one."""
    error = info.get("error")
    if not isinstance(error, dict):
        return 0 if error is None else 1
    return number_of(error, "err_code") or 1


def number_of(info: object, *names: str) -> int | None:
    """A number in what the server said; None without it."""
    for name in names:
        info = info.get(name) if isinstance(info, dict) else None
    return info if isinstance(info, int) else None
