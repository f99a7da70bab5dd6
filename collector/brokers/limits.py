"""What NATS may keep for devices: limits that its configuration cannot express.

NATS keeps retained messages and queues in streams of its own making, without limits, and changes
back what it makes retained messages of at every start. So the auditor sets the limits whenever the
broker has started, by NATS's own interface, which MQTT clients reach too where they are allowed to:

- only what is for all can be retained: a device that asks for it waits five seconds for nothing;
- what an earlier configuration let devices retain is deleted;
- queues together have a largest size, and an oldest message; what is oldest goes first, and a
  report that went is sent again by its device until it is on a receipt page.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from collector.brokers.access import AUDITOR
from collector.brokers.directory import BrokerDirectory
from collector.brokers.nats import subjects
from collector.brokers.plan import LARGEST_STORE, SESSION_DAYS, BrokerPlan
from collector.mqtt import Connect, Link, Will
from collector.mqtt.link import PahoLink
from protocol_spec import AllomfreeError
from protocol_spec.programs.address import BrokerUrl
from protocol_spec.programs.mqtt import MQTT_311
from protocol_spec.programs.names import unguessable
from protocol_spec.topics import VERSION, for_all

ANSWER_SECONDS: Final = 10.0
CLUSTER_SECONDS: Final = 2.0  # much less than a leader's lease, which goes on meanwhile
_RETAINED, _QUEUED = "$MQTT_rmsgs", "$MQTT_msgs"
_NANOSECONDS: Final = 10**9

log = logging.getLogger("allomfree.broker")


def limiting(directory: Path, url: BrokerUrl, connect: Connect) -> Connect:
    """Of a cluster that was configured here, set the limits whenever we connect to a node: nobody
    here starts its nodes, and a node sets its own when it starts."""
    if not BrokerDirectory.exists(directory):
        return connect
    configured = BrokerDirectory.load(directory)
    if url.host not in configured.plan.nodes:
        return connect

    def limited(will: Will | None) -> Link:
        link = connect(will)
        limit_nats(configured, url, CLUSTER_SECONDS)
        return link

    return limited


def limit_nats(
    configured: BrokerDirectory, url: BrokerUrl | None = None, seconds: float = ANSWER_SECONDS
) -> bool:
    """Set the limits of a broker that has just started; False, with a warning, if it refused."""
    try:
        done = _ask(configured, url or configured.plan.local_url, seconds)
    except (AllomfreeError, OSError) as error:
        log.warning("the broker's limits could not be set: %s", error)
        return False
    if not done:
        log.warning("the broker's limits could not be set; see: allomfree-collector doctor")
    return done


def _ask(configured: BrokerDirectory, url: BrokerUrl, seconds: float) -> bool:
    link = PahoLink(
        url,
        configured.credentials(AUDITOR),
        client_id=unguessable("limit"),
        version=MQTT_311,
        persistent=False,
    )
    link.connect()
    asked = requests(configured.plan)
    waiting = {link.publish(topic, body, retain=False) for topic, body in asked}
    until = time.monotonic() + seconds
    while waiting and link.lost is None and time.monotonic() < until:
        link.step(0.1)
        waiting -= link.answers().keys()
    link.close()
    return not waiting


def requests(plan: BrokerPlan) -> Iterator[tuple[str, bytes]]:
    """Topic and body of what has to be asked for, in this order."""
    retained = [for_all(plan.namespace)]
    if plan.home_assistant:
        retained.append(f"{plan.home_assistant}/device/+/config")
    kept = [f"$MQTT.rmsgs.{subject}" for topic in retained for subject in subjects(topic)]
    yield _request(
        "UPDATE",
        _RETAINED,
        subjects=kept,
        retention="limits",
        max_msgs_per_subject=1,
        num_replicas=plan.replicas,
    )
    yield _request("PURGE", _RETAINED, filter=f"$MQTT.rmsgs.{plan.namespace}.{VERSION}.*.up.>")
    yield _request(
        "UPDATE",
        _QUEUED,
        subjects=["$MQTT.msgs.>"],
        retention="interest",
        max_bytes=LARGEST_STORE,
        max_age=SESSION_DAYS * 86_400 * _NANOSECONDS,
        discard="old",
        num_replicas=plan.replicas,
    )


def _request(verb: str, stream: str, **body: Any) -> tuple[str, bytes]:
    if verb == "UPDATE":
        body |= {"name": stream, "storage": "file"}
    return f"$JS/API/STREAM/{verb}/{stream}", json.dumps(body).encode()
