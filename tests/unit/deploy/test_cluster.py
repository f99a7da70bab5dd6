"""The cluster's compose and Kubernetes files fit what `broker-config --cluster` writes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.brokers.config import CLUSTER_PORT, COLLECTOR, PORT, STREAM_PORT, BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.settings import SETTINGS, Settings, resolve
from tests.support.deploy_files import DEPLOY, DOCKERFILES, can_be_typed

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.cluster.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KUBERNETES: list[dict[str, Any]] = list(
    yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
)
GUIDE = (DEPLOY / "README.md").read_text(encoding="utf-8")
IMAGE = DOCKERFILES["collector"]
NODES = ["nats-1", "nats-2", "nats-3"]
WORKERS = ["worker-1", "worker-2", "worker-3"]
ORDINALS = range(3)


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = (d for d in KUBERNETES if (d["kind"], d["metadata"]["name"]) == (kind, name))
    return found


def pod(kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(kind, name)["spec"]["template"]["spec"]
    return spec


NODE, WORKER = pod("StatefulSet", "nats"), pod("Deployment", "worker")
CONTAINERS = [c for p in (NODE, WORKER) for c in (*p["initContainers"], *p["containers"])]


def shown(first: str) -> Iterator[list[str]]:
    """The guide's command lines that begin with a word."""
    for line in re.findall(rf"(?m)^\$ ({first} .*)$", GUIDE):
        yield shlex.split(line)


def plan_of(words: list[str]) -> BrokerPlan:
    """What a `broker-config` of the guide plans."""
    nodes = words[words.index("--cluster") + 1 :][:3]
    hosts = tuple(words[at + 1] for at, word in enumerate(words) if word == "--host")
    return BrokerPlan("nats", "allomfree", hosts, Path(), nodes=tuple(nodes), stream_port=4222)


def settings(environ: dict[str, str]) -> Settings:
    ours = {key for key in environ if key.startswith("ALLOMFREE_")}
    assert ours <= {setting.variable for setting in SETTINGS}
    return resolve({}, config=Path("/dev/null"), environ=environ)


def compose_plan() -> BrokerPlan:
    (words,) = (w for w in shown("docker") if "--cluster" in w)
    can_be_typed(["allomfree-collector", *words[words.index("broker-config") :]])
    return plan_of(words)


def kubernetes_plan() -> BrokerPlan:
    (words,) = (w for w in shown("allomfree-collector") if "--cluster" in w)
    can_be_typed(words)
    return plan_of(words)


@pytest.mark.parametrize("name", [*NODES, *WORKERS])
def test_every_service_of_ours_is_fenced(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"


def test_each_node_of_compose_runs_in_its_own_directory(tmp_path: Path) -> None:
    plan = compose_plan()
    assert list(plan.nodes) == NODES
    written = BrokerDirectory.configure(tmp_path / "broker", plan).path
    for node in NODES:
        service = SERVICES[node]
        (mounted,) = service["volumes"]
        source, target = mounted.split(":")
        place = written / Path(source).relative_to("cluster/broker")
        assert service["working_dir"] == target
        assert (place / service["entrypoint"][-1]).is_file()
        assert service["user"] == f"{IMAGE.user}:{IMAGE.user}"
        assert service["ports"][0].endswith(f":{PORT}")


@pytest.mark.parametrize("name", WORKERS)
def test_workers_of_compose_know_nodes_database_and_credential(name: str, tmp_path: Path) -> None:
    plan = compose_plan()
    known = settings(IMAGE.environment | SERVICES[name]["environment"])
    assert known.stream == plan.streams("")
    assert known.required_broker().host in NODES
    assert known.store is not None
    assert known.username == COLLECTOR
    written = BrokerDirectory.configure(tmp_path / "broker", plan).path
    for file in (known.password_file, known.ca_file):
        assert file is not None
        assert (written / file.relative_to(known.broker_dir)).is_file()
    own = [volume.split(":")[0] for volume in SERVICES[name]["volumes"]]
    assert name in own, "two workers cannot share a data directory"
    assert name in COMPOSE["volumes"]


def test_the_pages_port_is_offered_to_this_machine_only() -> None:
    ports = [port for name in WORKERS for port in SERVICES[name].get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert "ports" not in SERVICES["database"]


def test_nodes_of_kubernetes_have_the_names_in_their_files() -> None:
    stateful, plan = one("StatefulSet", "nats"), kubernetes_plan()
    service, space = stateful["spec"]["serviceName"], stateful["metadata"]["namespace"]
    assert one("Service", service)["spec"]["clusterIP"] == "None"
    assert stateful["spec"]["replicas"] == len(plan.nodes)
    assert list(plan.nodes) == [f"nats-{n}.{service}.{space}.svc" for n in ORDINALS]
    ports = {port["containerPort"] for port in NODE["containers"][0]["ports"]}
    assert ports == {PORT, STREAM_PORT, CLUSTER_PORT}
    assert {p["port"] for p in one("Service", service)["spec"]["ports"]} == ports
    assert [p["port"] for p in one("Service", "mqtts")["spec"]["ports"]] == [PORT]


def test_what_a_node_needs_is_in_its_secret(tmp_path: Path) -> None:
    """The init container copies by pattern what the guide puts into the secret."""
    written = BrokerDirectory.configure(tmp_path / "broker", kubernetes_plan()).path
    script = NODE["initContainers"][0]["command"][-1]
    for place in (written / "nodes").iterdir():
        assert {file.suffix for file in place.iterdir() if file.is_file()} == {".conf"}
        assert {file.suffix for file in (place / "tls").iterdir()} == {".crt", ".key"}
    assert all(pattern in script for pattern in ("*.conf /node/", "*.crt", "*.key /node/tls/"))
    (made,) = (line for line in GUIDE.splitlines() if "create secret generic nats-$n" in line)
    assert made.count("--from-file=broker/nodes/nats-$n.nats.allomfree.svc") == 2
    assert NODE["containers"][0]["workingDir"] == "/node"


def test_workers_of_kubernetes_know_nodes_and_secrets() -> None:
    plan, (worker,) = kubernetes_plan(), WORKER["containers"]
    can_be_typed([*IMAGE.words("ENTRYPOINT"), *worker["args"]])
    can_be_typed(worker["livenessProbe"]["exec"]["command"])
    known = settings({row["name"]: row["value"] for row in worker["env"]})
    assert known.stream == plan.streams("")
    assert known.required_broker().host in plan.names, "the certificate is for it"
    (made,) = (words for words in shown("kubectl") if "worker" in words)
    held = {Path(word.partition("=")[2]).name for word in made if word.startswith("--from-file")}
    files = (known.password_file, known.ca_file, known.store_password_file)
    assert {file.name for file in files if file is not None} | {"device.key"} == held
    assert all(file is not None and file.parent == Path("/secrets") for file in files)
    assert WORKER["initContainers"][0]["command"][-1].endswith(f"{known.data_dir}/device.key")


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: str(c["name"]))
def test_every_container_of_kubernetes_is_fenced(container: dict[str, Any]) -> None:
    fence = container["securityContext"]
    assert fence["readOnlyRootFilesystem"] is True
    assert fence["allowPrivilegeEscalation"] is False
    assert fence["capabilities"] == {"drop": ["ALL"]}
    for spec in (NODE, WORKER):
        assert spec["securityContext"]["runAsUser"] == IMAGE.user
        assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "nats"), ("Deployment", "worker")])
def test_selectors_and_mounts_lead_somewhere(kind: str, name: str) -> None:
    made, spec = one(kind, name)["spec"], pod(kind, name)
    assert made["selector"]["matchLabels"] == made["template"]["metadata"]["labels"]
    claims = [claim["metadata"]["name"] for claim in made.get("volumeClaimTemplates", [])]
    there = {volume["name"] for volume in spec["volumes"]} | set(claims)
    used = {
        m["name"] for c in spec["initContainers"] + spec["containers"] for m in c["volumeMounts"]
    }
    assert used == there
