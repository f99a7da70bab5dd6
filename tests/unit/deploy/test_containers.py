"""Images, compose and Kubernetes files: without privileges or secrets, and in agreement with the
commands, the settings, and what `broker-config` writes (S1)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import collector.settings
import edge_client.settings
from collector.brokers.config import CLUSTER_PORT, COLLECTOR, PORT, BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.settings import STREAM_PORT
from tests.support.documents import DEPLOY, DOCKERFILES, can_be_typed, project
from tests.support.harness import ROOT

SETTINGS = {"edge": edge_client.settings.SETTINGS, "collector": collector.settings.SETTINGS}
STATE = {"edge": "ALLOMFREE_STATE_DIR", "collector": "ALLOMFREE_DATA_DIR"}
HOST = "broker.example"
GUIDE = (DEPLOY / "README.md").read_text(encoding="utf-8")
NODES = ["nats-1", "nats-2", "nats-3"]
WORKERS = ["worker-1", "worker-2", "worker-3"]

each_image = pytest.mark.parametrize("name", DOCKERFILES)


def loaded(name: str) -> Any:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"\$\{ALLOMFREE_HOST[^}]*\}", HOST, text))


def shown(program: str) -> Iterator[list[str]]:
    """The guide's command lines of a program."""
    for line in re.findall(rf"(?m)^\$ (?:.*\| )?({program} .*)$", GUIDE):
        yield shlex.split(line.replace('"$ALLOMFREE_HOST"', HOST))


def settings_in(environ: dict[str, str]) -> collector.settings.Settings:
    ours = {key for key in environ if key.startswith("ALLOMFREE_")}
    assert ours <= {setting.variable for setting in SETTINGS["collector"]}
    return collector.settings.resolve({}, config=Path("/dev/null"), environ=environ)


# --- images --------------------------------------------------------------------------------------


@each_image
def test_an_image_ends_as_a_user_without_privileges_and_runs_what_exists(name: str) -> None:
    image = DOCKERFILES[name]
    assert image.user > 0
    assert f"--uid {image.user} " in "".join(image.all("RUN"))
    user = image.instructions.index(("USER", str(image.user)))
    assert "RUN" not in [what for what, _ in image.instructions[user:]]
    can_be_typed([*image.words("ENTRYPOINT"), *image.words("CMD")])
    can_be_typed(image.words("HEALTHCHECK"))
    (volume,) = image.all("VOLUME")
    assert image.environment[STATE[name]] == volume
    private = rf"install -d -m 0700 -o allomfree -g allomfree\s+{volume}"
    assert re.search(private, image.all("RUN")[-1])


@each_image
def test_an_image_holds_the_package_and_settings_and_no_secrets(name: str) -> None:
    image = DOCKERFILES[name]
    ours = {key for key in image.environment if key.startswith("ALLOMFREE_")}
    assert ours <= {setting.variable for setting in SETTINGS[name]}
    everything = " ".join(rest for _, rest in image.instructions).lower()
    assert not re.search(r"password|secret|token|credential|\.key|\.pem", everything)
    assert not image.all("ADD") + image.all("ARG")
    copies = [text.split() for text in image.all("COPY") if "--from" not in text]
    copied = {source for words in copies for source in words[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    setuptools = project()["tool"]["setuptools"]
    moved = setuptools["package-dir"]
    tops = {package.partition(".")[0] for package in setuptools["packages"]} - moved.keys()
    needed = {*tops, *moved.values(), "pyproject.toml", project()["project"]["readme"]}
    assert needed | set(project()["project"]["license-files"]) <= copied
    rules = (DEPLOY / f"Dockerfile.{name}.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [rule for rule in rules if rule and rule[0] != "#"]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules[1:] if rule.startswith("!")} == copied


@each_image
def test_an_image_installs_the_pinned_files_and_builds_only_our_wheel(name: str) -> None:
    """S1: what is fetched is checked by its hash."""
    image = DOCKERFILES[name]
    bases = {text.split()[0] for text in image.all("FROM")}
    assert len(bases) == 1, "wheels fit the Python they were made for"
    found = re.fullmatch(r"python:3\.(\d+)-slim(@sha256:[0-9a-f]{64})?", bases.pop())
    assert found
    assert int(found[1]) >= int(project()["project"]["requires-python"].removeprefix(">=3."))
    build, install = image.all("RUN")
    pinned = {"edge": "edge", "collector": "postgres"}[name]  # which holds the collector's, too
    fetch, builder, own = build.split("&&")
    assert f"--requirement scripts/requirements/{pinned}.txt" in fetch
    assert "--requirement scripts/requirements/build.txt" in builder
    for fetching in (fetch, builder):
        assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(fetching.split())
    assert {"--no-deps", "--no-index", "--no-build-isolation", "."} <= set(own.split())
    extras = {"edge": "", "collector": "[collector,broker,postgres]"}[name]
    assert {"--no-index", f"allomfree{extras}"} <= set(install.replace('"', "").split())


# --- compose -------------------------------------------------------------------------------------

ONE, CLUSTER = loaded("compose.yaml"), loaded("compose.cluster.yaml")
IMAGES = {"collector": DOCKERFILES["collector"], "agent": DOCKERFILES["edge"]}
USER = IMAGES["collector"].user


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What is mounted where, in the short and in the long form."""
    found = {}
    for volume in service["volumes"]:
        long = isinstance(volume, dict)
        source, target = (volume["source"], volume["target"]) if long else volume.split(":")[:2]
        found[target] = source
    return found


@pytest.mark.parametrize("compose", [ONE, CLUSTER], ids=["one", "cluster"])
def test_services_are_confined_restarted_and_only_brokers_offered_to_the_network(
    compose: Any,
) -> None:
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    brokers = [ports.pop(name, []) for name in ("mosquitto", *NODES)]
    assert all(offered[0].endswith(f":{PORT}") for offered in brokers if offered)
    offered = [port for some in ports.values() for port in some]
    assert offered
    assert all(port.startswith("127.0.0.1:") for port in offered)
    for name in compose["services"] if compose is ONE else (*NODES, *WORKERS):
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "unless-stopped"
        assert "privileged" not in service
        sources = {source for source in mounts(service).values() if source[0] != "."}
        assert {name for name in sources if not name.startswith("clu")} <= set(compose["volumes"])
    for name, image in IMAGES.items() if compose is ONE else ():
        service, build = compose["services"][name], compose["services"][name]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == image.path
        assert set(image.all("VOLUME")) <= mounts(service).keys()
        assert "healthcheck" in service or image.words("HEALTHCHECK")


def test_collector_and_mosquitto_share_what_broker_config_writes(tmp_path: Path) -> None:
    mosquitto, own = ONE["services"]["mosquitto"], ONE["services"]["collector"]
    (configure,) = (w for w in shown("docker") if "mosquitto" in w and "--root" in w)
    root = Path(configure[configure.index("--root") + 1])
    plan = BrokerPlan("mosquitto", "allomfree", (HOST,), root)
    written = BrokerDirectory.configure(tmp_path / "broker", plan).path
    assert mosquitto["user"] == f"{USER}:{USER}", "who wrote the files reads them"
    assert mosquitto["command"][:2] == ["/usr/sbin/mosquitto", "-c"]
    assert (written / Path(mosquitto["command"][2]).relative_to(root)).is_file()
    assert HOST in mosquitto["networks"]["default"]["aliases"]
    settings = settings_in(IMAGES["collector"].environment | own["environment"])
    assert mounts(own)[str(settings.broker_dir)] == mounts(mosquitto)[str(root)]
    assert settings.required_broker() == plan.url
    assert settings.username == COLLECTOR
    for file in (settings.password_file, settings.ca_file):
        assert file is not None
        assert (written / file.relative_to(settings.broker_dir)).is_file()


def test_commands_of_the_guide_can_be_typed() -> None:
    tried = set()
    for words in shown("docker"):
        if words[1:3] == ["compose", "exec"]:
            _, *command = [word for word in words[3:] if word != "-T"]
        elif words[1:4] == ["compose", "run", "--rm"]:
            command = [*IMAGES[words[4]].words("ENTRYPOINT"), *words[5:]]
        elif words[1] == "run" and words[-1] != "allomfree-collector":
            command = words[words.index("allomfree-collector") :]
        else:
            continue
        can_be_typed(command)
        tried.add(command[1])
    assert tried >= {"broker-config", "doctor", "open", "enrol", "join", "page"}


# --- the cluster, in compose and in Kubernetes ---------------------------------------------------

KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = (d for d in KUBERNETES if (d["kind"], d["metadata"]["name"]) == (kind, name))
    spec: dict[str, Any] = found["spec"]
    return spec


NODE = one("StatefulSet", "nats")["template"]["spec"]
WORKER = one("Deployment", "worker")["template"]["spec"]


def cluster_plan(program: str) -> BrokerPlan:
    """What the guide's `broker-config --cluster` plans, by docker or by hand."""
    (words,) = (w for w in shown(program) if "--cluster" in w)
    can_be_typed(["allomfree-collector", *words[words.index("broker-config") :]])
    nodes = words[words.index("--cluster") + 1 :][:3]
    hosts = tuple(words[at + 1] for at, word in enumerate(words) if word == "--host")
    return BrokerPlan("nats", "allomfree", hosts, Path(), nodes=tuple(nodes), stream_port=4222)


def test_compose_runs_each_node_and_worker_with_its_own_files(tmp_path: Path) -> None:
    plan = cluster_plan("docker")
    assert list(plan.nodes) == NODES
    written = BrokerDirectory.configure(tmp_path / "broker", plan).path
    for service in (CLUSTER["services"][node] for node in NODES):
        ((target, source),) = mounts(service).items()
        place = written / Path(source).relative_to("cluster/broker")
        assert service["working_dir"] == target
        assert (place / service["entrypoint"][-1]).is_file()
        assert service["user"] == f"{USER}:{USER}"
    for name in WORKERS:
        service = CLUSTER["services"][name]
        known = settings_in(IMAGES["collector"].environment | service["environment"])
        assert known.stream == plan.streams("")
        assert known.required_broker().host in NODES
        assert known.store is not None
        assert known.username == COLLECTOR
        for file in (known.password_file, known.ca_file):
            assert file is not None
            assert (written / file.relative_to(known.broker_dir)).is_file()
        assert name in mounts(service).values(), "two workers cannot share a data directory"


def test_nodes_and_workers_of_kubernetes_have_names_ports_and_secrets() -> None:
    stateful, plan = one("StatefulSet", "nats"), cluster_plan("allomfree-collector")
    service, (worker,) = stateful["serviceName"], WORKER["containers"]
    assert list(plan.nodes) == [f"nats-{n}.{service}.allomfree.svc" for n in range(3)]
    assert stateful["replicas"] == len(plan.nodes)
    ports = {port["containerPort"] for port in NODE["containers"][0]["ports"]}
    assert ports == {PORT, STREAM_PORT, CLUSTER_PORT}
    assert {p["port"] for p in one("Service", service)["ports"]} == ports
    assert [p["port"] for p in one("Service", "mqtts")["ports"]] == [PORT]
    can_be_typed([*IMAGES["collector"].words("ENTRYPOINT"), *worker["args"]])
    can_be_typed(worker["livenessProbe"]["exec"]["command"])
    known = settings_in({row["name"]: row["value"] for row in worker["env"]})
    assert known.stream == plan.streams("")
    assert known.required_broker().host in plan.names, "the certificate is for it"
    (made,) = (words for words in shown("kubectl") if "worker" in words)
    held = {Path(word.partition("=")[2]).name for word in made if word.startswith("--from-file")}
    files = (known.password_file, known.ca_file, known.store_password_file)
    assert {file.name for file in files if file is not None} | {"device.key"} == held
    assert all(file is not None and file.parent == Path("/secrets") for file in files)


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "nats"), ("Deployment", "worker")])
def test_pods_of_kubernetes_are_confined_and_whole(kind: str, name: str) -> None:
    made = one(kind, name)
    spec = made["template"]["spec"]
    containers = [*spec["initContainers"], *spec["containers"]]
    for container in containers:
        fence = container["securityContext"]
        assert fence["readOnlyRootFilesystem"] is True
        assert fence["allowPrivilegeEscalation"] is False
        assert fence["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsUser"] == USER
    assert spec["automountServiceAccountToken"] is False
    assert made["selector"]["matchLabels"] == made["template"]["metadata"]["labels"]
    claims = [claim["metadata"]["name"] for claim in made.get("volumeClaimTemplates", [])]
    there = {volume["name"] for volume in spec["volumes"]} | set(claims)
    assert {mount["name"] for c in containers for mount in c["volumeMounts"]} == there
