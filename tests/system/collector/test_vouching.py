"""Which manifest an owner joins, and who vouches for it, at real brokers (P3, P4).

Commands run in this process, which is quicker; the service is a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collector.commands import main as collector_main
from edge_client.__main__ import main as edge_main
from protocol_spec import Manifest, Signature, Topics, digest8
from protocol_spec.programs import signing
from testbed.brokers import Broker
from tests.support.collector_processes.campaign import own_namespace
from tests.support.collector_processes.processes import CollectorProcess
from tests.support.collector_processes.wire import Publisher, Watcher, retained
from tests.support.command_line import empty_home, facts_of, invoker, undisturbed
from tests.support.hostile import TEXT_A, TEXT_B, A, B

STRANGER = signing.new_secret()
collector, edge = invoker(collector_main), invoker(edge_main)


def facts(*words: object) -> Any:
    return facts_of(collector(*words, "--json"))


@dataclass(frozen=True, slots=True)
class Coordinator:
    """An operator's place at a broker that others can write to, too."""

    broker: Broker
    place: Path
    namespace: str

    def flags(self) -> tuple[str, ...]:
        data = ("--data-dir", str(self.place / "data"))
        return (*data, "--broker", self.broker.url, "--namespace", self.namespace)

    def write(self, text: str, operator: str = "") -> Path:
        file = self.place / "campaign.toml"
        file.write_text(text.replace("[rounds]", f'operator = "{operator}"\n[rounds]'))
        return file

    def opens(self, text: str, operator: str = "") -> tuple[Manifest, str]:
        """The manifest, and the address in the line for owners."""
        file = self.write(text, operator)
        told = facts("open", file, *self.flags())
        assert told["published"], told
        return Manifest.from_file(file), told["join"].removeprefix("allomfree-edge join ")

    def publish(self, topic: str, payload: bytes) -> None:
        with Publisher(self.broker.port) as anybody:
            anybody.send([(topic, payload)], retain=True)

    def topics(self, manifest: Manifest) -> Topics:
        return Topics(manifest.campaign, self.namespace)


@pytest.fixture
def coordinator(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Coordinator]:
    empty_home(tmp_path, monkeypatch)
    with undisturbed():
        yield Coordinator(broker, tmp_path, own_namespace())


class Owner:
    """A device with a policy of its own."""

    def __init__(self, place: Path, policy: str = "") -> None:
        self.config = place / "edge.toml"
        self.config.write_text(f'state_dir = "{place / "state"}"\n[policy]\n{policy}\n')

    def looks(self, address: str, *words: str) -> Any:
        """What `join` would show."""
        return facts_of(
            edge("join", address, "--preview", "--json", "--config", self.config, *words)
        )

    def is_refused(self, code: int, address: str, *words: str) -> str:
        flags = ("--yes", "--timeout", "1", "--config", self.config)
        done = edge("join", address, *flags, *words)
        assert done.exit_code == code, (done.stdout, done.stderr)
        assert "was drawn, sent or spent" in done.stderr.lower().replace("nothing", "")
        return done.stderr

    def joins(self, address: str) -> str:
        done = edge("join", address, "--yes", "--config", self.config)
        assert done.exit_code == 0, done.stderr
        return " ".join(done.stdout.split())


def test_a_signed_campaign_is_verified_and_a_forged_one_refused(coordinator: Coordinator) -> None:
    """P4: from the key to the owner's policy, and what somebody at the broker can do."""
    operator = facts("operator-key", "create", *coordinator.flags()[:2])["operator"]
    manifest, address = coordinator.opens(TEXT_A, operator)
    anyone = Owner(coordinator.place)
    told = anyone.looks(address)
    assert (told["operator"], told["operator_verified"]) == (operator, True)
    assert (told["whole_digest"], told["operator_name"]) == (True, None)
    stranger = signing.public_key(STRANGER).hex()
    other = Owner(coordinator.place, f'operators = ["{stranger}"]')
    assert "change policy.operators" in other.is_refused(3, address)
    topic = coordinator.topics(manifest).signature
    good = retained(coordinator.broker.port, topic)[topic]
    forged = Signature(digest8(manifest), signing.sign(STRANGER, manifest.digest)).encode()
    known = Owner(coordinator.place, f'operators = {{ city = "{operator}" }}')
    for payload, fault in ((forged, "is wrong"), (good[:-1], "is not one"), (b"", "is not there")):
        coordinator.publish(topic, payload)
        assert fault in known.is_refused(1, address)
    with CollectorProcess(coordinator.place / "data", *coordinator.flags()[2:]) as service:
        service.wait_for("collecting for")  # which publishes it again
        with Watcher(coordinator.broker.port, topic) as watcher:
            assert watcher.wait_for_topic(topic, good) == good
        assert f"Signed by city ({operator}), verified" in known.joins(address)


def test_an_unsigned_campaign_says_so(coordinator: Coordinator) -> None:
    """P4: and an owner who lists operators does not join it."""
    _, address = coordinator.opens(TEXT_A)
    key = signing.public_key(STRANGER).hex()
    refused = Owner(coordinator.place, f'operators = ["{key}"]').is_refused(3, address)
    assert "is unsigned" in refused
    assert "Signed by nobody" in Owner(coordinator.place).joins(address)


def test_two_campaigns_with_one_name(coordinator: Coordinator) -> None:
    """P3: opening, looking and joining compare all of the digest."""
    _, address = coordinator.opens(TEXT_A)
    again = collector("open", coordinator.write(TEXT_B), *coordinator.flags())
    assert again.exit_code == 1
    for shown in (A.digest.hex(), B.digest.hex(), "Nothing was opened or changed"):
        assert shown in again.stderr
    short = address.replace(A.full_name, A.campaign)
    owner = Owner(coordinator.place)
    assert owner.looks(short)["whole_digest"] is False
    assert owner.looks(short, "--digest", A.digest.hex())["whole_digest"] is True
    coordinator.publish(coordinator.topics(A).manifest, B.to_bytes())  # somebody at the broker
    assert A.digest.hex() in owner.is_refused(1, address)
    assert A.digest.hex() in owner.is_refused(1, short, "--digest", A.digest.hex())
    coordinator.publish(coordinator.topics(A).manifest, A.to_bytes())
    owner.joins(address)
    coordinator.publish(coordinator.topics(A).manifest, B.to_bytes())
    refused = edge("join", short, "--yes", "--config", owner.config)
    assert refused.exit_code == 1
    assert "do not trust this invitation" in refused.stderr
    told = facts_of(edge("show", "--json", "--config", owner.config))
    assert [c["digest"] for c in told["campaigns"]] == [A.digest.hex()]
