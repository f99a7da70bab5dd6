"""Whoever sees the lengths of TLS records does not learn which question a device drew (P5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from edge_client import Credentials, EdgeClient
from edge_client.records import Queued
from protocol_spec import Manifest, receipt_page
from testbed.brokers import AS_OURSELVES, Broker, Mosquitto, Nats
from tests.support.brokers import Files
from tests.support.campaigns import second_manifest
from tests.support.edge import QUICK, tick_until
from tests.support.harness import need
from tests.support.network import Proxy

APPLICATION_DATA: Final = 23
QUESTIONS: Final = """[[attributes]]
name = "heated"
question = "Is it heated?"
values = ["yes", "no"]
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
[[attributes]]
name = "town"
question = "Where is it?"
protocol = "L-OSUE"
values = [{towns}]
"""


def asked() -> Manifest:
    """Answers of 1 byte and of 38."""
    towns = ", ".join(f'"t{i}"' for i in range(300))
    manifest = second_manifest(attributes=QUESTIONS.format(towns=towns))
    assert sorted(set(manifest.answer_lengths)) == [1, 38]
    return manifest


@contextmanager
def tls_broker(kind: str, files: Files, directory: Path) -> Iterator[Broker]:
    broker: Broker
    chain, key = files.server("localhost")
    if kind == "mosquitto":
        need("mosquitto")
        broker = Mosquitto(directory)
        broker.extra = f"certfile {chain}\nkeyfile {key}\nallow_anonymous true\n{AS_OURSELVES}"
    else:
        broker = Nats(directory)
        broker.listener = f'tls {{ cert_file: "{chain}", key_file: "{key}" }}'
    with broker:
        yield broker


def records(stream: bytes) -> list[int]:
    """The lengths of the records that carry data, as anybody on the way sees them."""
    lengths = []
    while len(stream) >= 5:
        kind, length = stream[0], int.from_bytes(stream[3:5])
        if kind == APPLICATION_DATA:
            lengths.append(length)
        stream = stream[5 + length :]
    return lengths


def seen(
    broker: Broker,
    campaign: Manifest,
    attribute: int,
    state: Path,
    ca: Path,
    device: str = "device",
) -> int:
    """The longest record of a device that drew this question: that of its report."""
    points: list[str] = []

    with Proxy(broker.port) as proxy:
        with EdgeClient(
            state, credentials=Credentials(ca_file=str(ca)), timing=QUICK, trace=points.append
        ) as client:
            url = f"mqtts://localhost:{proxy.port}"
            client.join(client.invitation(manifest=campaign, broker=url), device=device)
            client.store.execute("UPDATE campaign SET attribute = ?", (attribute,))
            client.store.set_status(campaign.campaign, "joined", 0)
            value = campaign.attributes[attribute].values[0]
            drawn = client.agent.draw(client.find(), lambda _: value)
            assert isinstance(drawn, Queued)
            assert client.find().attribute_index == attribute
            with closing(client.runner(lambda _: value)) as runner:
                tick_until(runner, lambda: "acknowledged" in points)
        return max(length for each in proxy.connections for length in records(each.from_client))


def one_longer(campaign: Manifest) -> str:
    """A name one byte longer whose page of receipts, which the record names too, is as long."""
    digits = len(str(receipt_page(campaign, "device")))
    names = (f"device{i}" for i in range(10))
    return next(name for name in names if len(str(receipt_page(campaign, name))) == digits)


@pytest.mark.parametrize("kind", ["mosquitto", "nats"])
def test_the_question_does_not_show_in_the_records(kind: str, tmp_path: Path) -> None:
    files, campaign, ca = Files.made(tmp_path), asked(), tmp_path / "ca.pem"
    with tls_broker(kind, files, tmp_path / kind) as broker:
        first, *others = (seen(broker, campaign, i, tmp_path / f"new{i}", ca) for i in range(3))
        longer = seen(broker, campaign, 0, tmp_path / "longer", ca, device=one_longer(campaign))
    assert others == [first] * len(others)
    assert longer != first, "one byte more would be seen"
