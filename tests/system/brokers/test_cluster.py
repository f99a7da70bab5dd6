"""`broker-config nats --cluster`: what is written for each node, and three that really run."""

from __future__ import annotations

import json
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import ExtendedKeyUsage
from cryptography.x509.oid import ExtendedKeyUsageOID

from collector.brokers.auditor import limit_nats, limit_requests
from collector.brokers.authority import names_of, read_certificate
from collector.brokers.config import COLLECTOR, BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.data_dir import open_store
from collector.settings import resolve
from protocol_spec import Manifest, Topics
from testbed.collector import Cluster
from tests.support.brokers import V311, Guest
from tests.support.campaigns import manifest_text
from tests.support.collector import message
from tests.support.command_line import Cli
from tests.support.harness import QUICK_DISK, need

NODES = ("a.example", "b.example", "192.0.2.7")


def configured(cli: Cli, data: Path, *more: object) -> Result:
    words = ("broker-config", "nats", "--cluster", *NODES, "--data-dir", data, *more)
    made = cli(*words)
    assert made.exit_code == 0, made.stderr
    return made


def test_every_node_gets_a_directory_of_its_own(cli: Cli, data: Path) -> None:
    facts = json.loads(configured(cli, data, "--json").stdout)
    assert list(facts["nodes"]) == list(NODES)
    for node, place in facts["nodes"].items():
        text = (Path(place) / "nats.conf").read_text()
        assert f'server_name: "allomfree-{node}"' in text
        assert "stream_replicas: 3" in text
        assert all(f'"tls://{other}:6222"' in text for other in NODES)
        assert "verify: true" in text
        assert str(data) not in text, "it is carried to another machine"
        assert Path(place).stat().st_mode & 0o077 == 0
        assert names_of(Path(place) / "tls" / "server.crt") >= set(NODES)
    assert not (data / "broker" / "nats.conf").exists()


def test_nodes_trust_nobody_but_nodes(cli: Cli, data: Path) -> None:
    """A device's certificate is of another authority than theirs."""
    configured(cli, data, "--auth", "certificate")
    place = data / "broker" / "nodes" / NODES[0] / "tls"
    route, nodes = read_certificate(place / "route.crt"), read_certificate(place / "routes.crt")
    route.verify_directly_issued_by(nodes)
    uses = route.extensions.get_extension_for_class(ExtendedKeyUsage).value
    assert set(uses) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert names_of(place / "route.crt") == {NODES[0]}
    device = read_certificate(data / "broker" / "credentials" / COLLECTOR / "client.crt")
    with pytest.raises(InvalidSignature):
        device.verify_directly_issued_by(nodes)
    assert not list((data / "broker" / "nodes").rglob("ca.key"))


def test_the_collector_is_told_of_all_nodes(cli: Cli, data: Path) -> None:
    configured(cli, data)
    file = data / "broker" / "credentials" / COLLECTOR / "collector.toml"
    told = resolve({}, config=file, environ={})
    assert [str(stream) for stream in told.stream or ()] == [f"tls://{n}:4222" for n in NODES]
    assert str(told.broker) == "mqtts://a.example:8883"


def test_enrolling_changes_all_nodes_and_says_what_to_copy(cli: Cli, data: Path) -> None:
    configured(cli, data)
    said = cli("enrol", "kitchen", "--data-dir", data).stdout
    assert "nats-server --signal reload=broker.pid" in said
    places = [data / "broker" / "nodes" / node for node in NODES]
    assert all(str(place) in said for place in places)
    assert all('"kitchen"' in (place / "users.conf").read_text() for place in places)
    assert "reload=broker.pid" in cli("revoke", "kitchen", "--data-dir", data).stdout
    assert not any('"kitchen"' in (place / "users.conf").read_text() for place in places)


def test_run_again_it_keeps_the_nodes(cli: Cli, data: Path) -> None:
    configured(cli, data, "--port", "9883")
    before = {p: p.read_bytes() for p in (data / "broker" / "nodes").rglob("*") if p.is_file()}
    assert cli("broker-config", "nats", "--data-dir", data).exit_code == 0
    assert {p: p.read_bytes() for p in before} == before


def test_what_is_kept_is_kept_three_times() -> None:
    plan = BrokerPlan("nats", "allomfree", NODES, Path(), nodes=NODES)
    asked = [json.loads(body) for topic, body in limit_requests(plan) if "UPDATE" in topic]
    assert [body["num_replicas"] for body in asked] == [3, 3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nats", "--cluster", "a", "b"), "a cluster of 2 is not possible"),
        (("nats", "--cluster", "a", "b", "c", "d"), "a cluster of 4 is not possible"),
        (("nats", "--cluster", "a", "b", "a"), "a is listed twice in --cluster"),
        (("nats", "--cluster", "a", "b", "no/host"), "in --cluster; nothing was written"),
        (("mosquitto", "--cluster", "a", "b", "c"), "--cluster needs NATS"),
        (("nats", "--cluster", "a", "b", "c", "--bind", "192.0.2.1"), "leave it out"),
        (("nats", "--cluster", "a", "b", "c", "--port", "6222"), "among themselves"),
        (("nats", "a", "b"), "unexpected extra argument"),
    ],
)
def test_what_cannot_be_a_cluster_is_refused(
    cli: Cli, data: Path, words: tuple[str, ...], said: str
) -> None:
    refused = cli("broker-config", *words, "--data-dir", data)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert not (data / "broker" / "broker.json").exists()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    need("postgres")
    with tempfile.TemporaryDirectory(dir=QUICK_DISK) as place:
        Path(place).chmod(0o711)
        with Cluster(Path(place) / "site", workers=1) as started:
            yield started


def test_what_one_node_took_is_counted_through_another(cluster: Cluster) -> None:
    """The node that took it is killed before anybody has read it."""
    cluster.start_workers()
    (worker,) = cluster.workers
    manifest = Manifest.from_toml(manifest_text(first=int(time.time()) - 1))
    with closing(open_store(worker.data, cluster.database.address())) as store:
        store.open_campaign(manifest, int(time.time()))
    cluster.enrol(["kitchen"])
    assert limit_nats(cluster.broker), "the auditor's limit_requests were refused"
    worker.stop()
    node = cluster.nodes[2]
    report = message(manifest, "kitchen", body=b"\1")
    password = cluster.broker.credentials("kitchen").password
    trusted = ssl.create_default_context(cafile=str(cluster.authority))
    guest = Guest(
        cluster.port, V311, name="kitchen", password=password, context=trusted, host=node.address
    )
    with guest:
        guest.say(Topics(manifest.campaign).report("kitchen"), report.payload)
    node.kill()
    worker.start()
    worker.wait_until_received(1)
    with worker.store() as store:
        assert sum(tally.n for tally in store.tallies(1, 0).values()) == 1
    assert BrokerDirectory.load(cluster.broker.path).reload() is False, "one node is down"
    node.start()
    assert cluster.broker.reload()
