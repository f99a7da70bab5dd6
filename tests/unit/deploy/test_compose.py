"""compose.yaml: fenced services that find each other, and the guide's commands for them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.brokers.config import COLLECTOR, PORT, BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.settings import SETTINGS, resolve
from tests.support.deploy_files import DEPLOY, DOCKERFILES, can_be_typed

HOST = "broker.example"
TEXT = re.sub(r"\$\{ALLOMFREE_HOST[^}]*\}", HOST, (DEPLOY / "compose.yaml").read_text("utf-8"))
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
GUIDE = (DEPLOY / "README.md").read_text(encoding="utf-8")
IMAGES = {"collector": DOCKERFILES["collector"], "agent": DOCKERFILES["edge"]}

each = pytest.mark.parametrize("name", SERVICES)


def mounts(name: str) -> dict[str, str]:
    """What is mounted where, whichever way it is written."""
    found = {}
    for volume in SERVICES[name]["volumes"]:
        long = isinstance(volume, dict)
        source, target = (volume["source"], volume["target"]) if long else volume.split(":")[:2]
        found[target] = source
    return found


def shown() -> Iterator[list[str]]:
    """Commands of the guide that begin with `docker`."""
    for line in re.findall(r"(?m)^\$ (?:.*\| )?(docker .*)$", GUIDE):
        yield shlex.split(line.replace('"$ALLOMFREE_HOST"', HOST))


@each
def test_every_service_is_fenced_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert "privileged" not in service


@each
def test_every_service_has_a_health_check(name: str) -> None:
    assert "healthcheck" in SERVICES[name] or IMAGES[name].words("HEALTHCHECK")


@each
def test_volumes_are_declared(name: str) -> None:
    named = {source for source in mounts(name).values() if not source.startswith(".")}
    assert named <= set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", IMAGES)
def test_our_images_are_built_from_here_and_keep_their_state(name: str) -> None:
    build = SERVICES[name]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == IMAGES[name].path
    assert set(IMAGES[name].all("VOLUME")) <= mounts(name).keys()


def test_the_broker_is_the_user_who_wrote_its_files() -> None:
    user = IMAGES["collector"].user
    assert SERVICES["mosquitto"]["user"] == f"{user}:{user}"


def test_collector_and_broker_share_the_brokers_directory(tmp_path: Path) -> None:
    """With the guide's `--root`, mosquitto is started with the file that is written."""
    (configure,) = (words for words in shown() if "mosquitto" in words and "--root" in words)
    root = Path(configure[configure.index("--root") + 1])
    command = SERVICES["mosquitto"]["command"]
    assert command[:2] == ["/usr/sbin/mosquitto", "-c"]
    plan = BrokerPlan("mosquitto", "allomfree", (HOST,), root)
    written = BrokerDirectory.configure(tmp_path / "broker", plan).path
    assert (written / Path(command[2]).relative_to(root)).is_file()
    settings = resolve({}, config=Path("/dev/null"), environ=IMAGES["collector"].environment)
    shared = mounts("mosquitto")[str(root)]
    assert mounts("collector")[str(settings.broker_dir)] == shared


def test_the_collector_knows_address_and_credential(tmp_path: Path) -> None:
    environ = IMAGES["collector"].environment | SERVICES["collector"]["environment"]
    ours = {key for key in environ if key.startswith("ALLOMFREE_")}
    assert ours <= {setting.variable for setting in SETTINGS}
    settings = resolve({}, config=Path("/dev/null"), environ=environ)
    plan = BrokerPlan("mosquitto", "allomfree", (HOST,), Path("/mosquitto/config"))
    configured = BrokerDirectory.configure(tmp_path / "broker", plan)
    assert settings.required_broker() == plan.url
    assert HOST in SERVICES["mosquitto"]["networks"]["default"]["aliases"]
    assert settings.username == COLLECTOR
    for file in (settings.password_file, settings.ca_file):
        assert file is not None
        assert (configured.path / file.relative_to(settings.broker_dir)).is_file()


def test_only_the_broker_is_offered_to_the_network() -> None:
    ports = {name: service.get("ports", []) for name, service in SERVICES.items()}
    assert ports.pop("mosquitto") == [f"{PORT}:{PORT}"]
    offered = [port for list_of in ports.values() for port in list_of]
    assert offered
    assert all(port.startswith("127.0.0.1:") for port in offered)


def test_commands_of_the_guide_can_be_typed() -> None:
    tried = set()
    for words in shown():
        if words[1:3] == ["compose", "exec"]:
            service, *command = [word for word in words[3:] if word != "-T"]
            assert service in SERVICES
        elif words[1:4] == ["compose", "run", "--rm"]:
            service, *arguments = words[4:]
            command = [*IMAGES[service].words("ENTRYPOINT"), *arguments]
        elif words[1] == "run" and words[-1] != "allomfree-collector":
            command = words[words.index("allomfree-collector") :]
        else:
            continue
        can_be_typed(command)
        tried.add(command[1])
    assert tried >= {"broker-config", "doctor", "open", "enrol", "join", "page"}
