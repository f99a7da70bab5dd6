"""A campaign from its beginning to its end, by the commands of the operator and the owners."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from collector.commands import main as collector_main
from collector.health import examine
from edge_client.__main__ import main as edge_main
from protocol_spec import Manifest, Presence, Signature, State, Topics, decode_state, digest8
from protocol_spec.programs import signing
from testbed.brokers import Broker, publish
from tests.support.agents import AgentProcess, edge
from tests.support.campaigns import manifest_text
from tests.support.collector_processes import (
    ATTRIBUTE,
    Collection,
    CollectorProcess,
    Launcher,
    Watcher,
    collector,
    own_namespace,
    retained,
    wait_until_open,
)
from tests.support.command_line import (
    Operator,
    empty_home,
    facts_of,
    invoker,
    operator,
    undisturbed,
)
from tests.support.documents import PAGES, blocks, read
from tests.support.harness import ROOT, all_at_once
from tests.support.hostile import TEXT_A, A
from tests.support.processes import environment, wait_until

HOUR = 3600
PAST, NOW = 0, 1


def write_manifest(file: Path) -> Manifest:
    """Round 0 has ended and is within its grace; round 1 is open."""
    table = f'[[attributes]]\nname = "{ATTRIBUTE}"\nquestion = "?"\nprotocol = "L-OSUE"\n'
    text = manifest_text(
        first=int(time.time()) - HOUR - 5,
        count=3,
        attributes=f'{table}values = ["v0", "v1", "v2"]\n',
    )
    file.write_text(text)
    return Manifest.from_toml(text)


class Owner:
    """A device and what its owner types."""

    def __init__(self, place: Path, name: str) -> None:
        self.config = place / f"{name}.toml"
        self.config.write_text(
            f'state_dir = "{place / name}"\n[sources.{ATTRIBUTE}]\nvalue = "v1"\n'
        )

    def joins_and_reports(self, address: str) -> None:
        self.says("join", address, "--yes")
        assert "counted" in self.says("report")

    def says(self, *words: str) -> str:
        done = edge(*words, "--config", self.config)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.slow
def test_from_open_to_close(broker: Broker, launcher: Launcher, tmp_path: Path) -> None:
    written = write_manifest(tmp_path / "campaign.toml")
    collection = Collection(tmp_path / "data", written, 3, own_namespace())
    at = collection.flags(broker)
    owners = [Owner(tmp_path, name) for name in ("one", "two")]
    with operator("--data-dir", collection.data, *at) as typing:
        opened = typing.asks("open", tmp_path / "campaign.toml")
        assert opened["campaign"] == collection.manifest.campaign
        address = opened["join"].removeprefix("allomfree-edge join ")
        with CollectorProcess(collection.data, *at) as running:
            wait_until_open(collection, broker.port)
            publish(broker.url, collection.reports(PAST))
            all_at_once(lambda owner: owner.joins_and_reports(address), owners)
            collection.wait_for(3, PAST)
            all_is_well(collection, typing)
            seal_and_read(typing, tmp_path)
            with AgentProcess(owners[0].config) as agent:
                agent.wait_for("connected to")
                close(collection, broker, running, typing)
                agent.wait_for("the collector has closed the campaign")
            assert "left" in owners[0].says("status")
    nothing_stays_retained(collection, broker, launcher)


def all_is_well(collection: Collection, typing: Operator) -> None:
    wait_until(lambda: examine(collection.data).well)
    assert collector("health", "--data-dir", collection.data).returncode == 0
    assert typing.asks("health")["finding"] == "connected and counting"
    findings = typing.asks("doctor")
    assert all(finding["ok"] for finding in findings), findings
    shown = typing.asks("status")
    (campaign,) = shown["campaigns"]
    assert shown["received"] == sum(campaign["outcomes"].values()) == 5
    assert [row["reports"] for row in campaign["filling"]] == [{ATTRIBUTE: 3}, {ATTRIBUTE: 2}]
    assert campaign["sealed"] == 0


def seal_and_read(typing: Operator, place: Path) -> None:
    assert typing.asks("seal", "--early")["sealed"] == [PAST]
    (estimate,) = typing.asks("estimate")
    assert (estimate["n"], estimate["rounds"], estimate["final"]) == (3, 1, True)
    assert [row["count"] for row in estimate["histogram"]] == [1, 1, 1]
    (latest,) = typing.asks("estimate", "--round", "latest")
    assert latest["round"] == PAST
    typing.runs("export", "--output", place / "heat.csv")
    rows = list(csv.DictReader((place / "heat.csv").read_text().splitlines()))
    assert {row["value"] for row in rows} == {"v0", "v1", "v2"}
    lines = typing.runs("export", "--format", "ndjson").stdout.splitlines()
    assert len([json.loads(line) for line in lines]) == len(rows)


def close(
    collection: Collection, broker: Broker, running: CollectorProcess, typing: Operator
) -> None:
    """Devices hear of it, the invitation is taken back, and what had begun is sealed."""
    with Watcher(broker.port, collection.topics.state, collection.topics.manifest) as watcher:
        watcher.wait_for_topic(collection.topics.manifest, collection.manifest.to_bytes())
        typing.runs("close", "--yes")
        watcher.wait_for_topic(collection.topics.manifest, b"")
        state = collection.topics.state  # NATS may hand on another topic first
        watcher.wait_for(lambda: presence(watcher.latest[state]) is Presence.CLOSED)
    wait_until(lambda: collection.look(NOW).sealed)
    wait_until(lambda: collection.look(NOW).unpublished == 0)
    kept = retained(broker.port, f"{collection.topics.manifest.removesuffix('/manifest')}/#")
    assert collection.topics.manifest not in kept
    assert presence(kept[collection.topics.state]) is Presence.CLOSED
    for number in (None, PAST, NOW):
        assert kept[collection.topics.result(ATTRIBUTE, number)] in collection.look().results
    assert running.terminate() == 0


def presence(payload: bytes) -> Presence:
    state = decode_state(payload)
    assert isinstance(state, State)
    return state.presence


def nothing_stays_retained(collection: Collection, broker: Broker, launcher: Launcher) -> None:
    """Receipts stand one period beyond the deadline, then they are cleared."""
    receipts = f"{collection.topics.receipt_root}#"
    assert retained(broker.port, receipts)
    collection.set_clock(collection.manifest.rounds.deadline(NOW) + HOUR + 1)
    run = launcher.start(collection.options(broker, clock=str(collection.clock)))
    wait_until(lambda: not retained(broker.port, receipts))
    assert run.terminate() == 0
    kept = retained(broker.port, f"{collection.topics.manifest.removesuffix('/manifest')}/#")
    assert presence(kept[collection.topics.state]) is Presence.CLOSED


# --- a backup made while reports are counted ------------------------------------------------------
DEVICES = 400
PARTS = 4


@pytest.mark.slow
def test_a_backup_while_counting_goes_on_as_the_same_collector(
    nats: Broker, tmp_path: Path
) -> None:
    collection, data = Collection.shared(tmp_path / "data", DEVICES), tmp_path / "data"
    reports, part, counts = collection.reports(), DEVICES // PARTS, []
    with operator() as typing:
        with CollectorProcess(data, *collection.flags(nats)) as running:
            wait_until_open(collection, nats.port)
            for number in range(PARTS):  # while the part before may still be on its way
                publish(nats.url, reports[number * part : (number + 1) * part])
                made = typing.asks("backup", tmp_path / f"{number}", "--data-dir", data)
                counts.append(made["received"])
            collection.wait_for(DEVICES)
            assert running.is_running
        assert counts == sorted(counts)
        for number, received in enumerate(counts):
            found = typing.asks("restore", tmp_path / f"{number}", "--check")
            assert found["received"] == received
        typing.runs("restore", tmp_path / "1", "--data-dir", tmp_path / "again")
    again = Collection(tmp_path / "again", collection.manifest, DEVICES, collection.namespace)
    with CollectorProcess(again.data, *again.flags(nats)):
        publish(nats.url, reports)  # with the same key, who was counted before is known
        again.wait_for(DEVICES)
        assert again.look().counts == [1] * DEVICES


# --- README's commands for operators, pasted into a shell with an empty home ----------------------
README = ROOT / "README.md"
INSTALLS = re.compile(r"^(python3 -m venv|\. \S+/bin/activate|pip install).*\n", re.MULTILINE)
LOOPBACK = "import fcntl, socket, struct as s; fcntl.ioctl(socket.socket(), 0x8914, s.pack('16sh', b'lo', 65))"  # noqa: E501


def pasted() -> tuple[str, str]:
    """The trial, and the setup for real use with its check at the end."""
    part = read(README).partition("**Collect on a broker**")[2].partition("**Simulate fleets**")[0]
    trial, real = blocks(part, "sh")
    return trial, real


@pytest.mark.slow
def test_readme_works_as_it_is_written(tmp_path: Path) -> None:
    """Only the lines that install are left out. Rounds are shorter, and devices fewer, by the
    variables that are documented for that."""
    trial, real = (INSTALLS.sub("", block) for block in pasted())
    wait = "until allomfree-collector health > /dev/null; do sleep 0.2; done\n"
    before, check, after = real.partition("allomfree-collector doctor")
    device = (
        'allomfree-edge join "$HOME"/.local/share/*/broker/invitations/kitchen.invitation --yes'
    )
    real = f"{before}{wait}{check}{after}{device}\n"
    script = f"set -eu\n{trial}{real}kill %%\nwait || true\n"
    done = in_an_empty_home(tmp_path, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(a TRIAL)" in done.stdout
    assert len(re.findall(r"Counted: +(\d+) of \1 reports in \d+ rounds", done.stdout)) == 2
    assert "the join link works" in done.stdout
    assert "over TLS, each with a password of its own" in done.stdout
    assert "revoked the devices of the trial" in done.stdout
    assert "[ ] 95 % interval   ● truth" in done.stdout, done.stdout
    assert "<svg" in (tmp_path / "trial.svg").read_text()
    assert "other machines reach it at mqtts://" in (tmp_path / "collector.log").read_text()
    assert done.stdout.count("ok    ") > 20
    assert "FAIL" not in done.stdout
    assert "nobody connects without a credential: refused" in done.stdout
    assert "This device will answer 'fuel', for life." in done.stdout


def in_an_empty_home(place: Path, script: str) -> subprocess.CompletedProcess[str]:
    """In a directory that looks like a checkout; what runs on in the background ends with it."""
    for name in ("docs", "scripts"):
        (place / name).symlink_to(ROOT / name)
    names = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as home:
        variables = {
            "HOME": home,
            "PATH": f"{names}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ALLOMFREE_TRIAL_ROUND": "2s",
            "ALLOMFREE_TRIAL_DEVICES": "20",
        }
        (place / "pasted.sh").write_text(script)
        return subprocess.run(
            [*alone(), "bash", "pasted.sh"], cwd=place, env=environment(variables), text=True,
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip


def alone() -> list[str]:
    """A network of its own where the system allows it, so that the ports of README are free; its
    loopback must be switched on."""
    script = f'{sys.executable} -c "{LOOPBACK}" && "$@"'
    prefix = ["unshare", "--net", "--", "bash", "-c", script, "-"]
    if shutil.which("unshare") is None:
        return []
    done = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if done.returncode == 0 else []


def test_readme_installs_extras_that_exist_from_the_source() -> None:
    """In an environment of its own (PEP 668); no page names an index, where somebody else could
    take the package's name."""
    head = read(README).partition("**Run agents on a Raspberry Pi")[0]
    assert ". ~/allomfree/bin/activate" in blocks(head, "sh")[-1]
    extras = re.findall(r"(?m)^(\w+) = \[", (ROOT / "pyproject.toml").read_text())
    for block in pasted():
        for named in re.findall(r"pip install '\.\[([a-z,]+)\]'", block):
            assert set(named.split(",")) <= set(extras)
    for page in PAGES:
        assert not re.search(r"pip(x)? install\s+'?allomfree", read(page)), page


# --- which manifest an owner joins, and who signed it (P3, P4) ------------------------------------
STRANGER = signing.new_secret()


def test_a_signed_campaign_is_verified_and_a_forged_one_refused(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the key to the owner's policy, and what somebody at the broker can do: forge the
    signature, or replace the manifest."""
    empty_home(tmp_path, monkeypatch)
    run_collector, run_edge = invoker(collector_main), invoker(edge_main)
    namespace, file, config = own_namespace(), tmp_path / "a.toml", tmp_path / "edge.toml"
    data = ("--data-dir", tmp_path / "data")
    at = ("--broker", broker.url, "--namespace", namespace)
    stranger = signing.new_secret()

    def put(topic: str, payload: bytes) -> None:
        publish(broker.url, [(topic, payload)], retain=True)

    def refused(code: int, policy: str = "") -> str:
        config.write_text(f'state_dir = "{tmp_path / "state"}"\n[policy]\n{policy}\n')
        done = run_edge("join", address, "--yes", "--timeout", "1", "--config", config)
        assert done.exit_code == code, (done.stdout, done.stderr)
        assert "was drawn, sent or spent" in done.stderr
        return done.stderr

    with undisturbed():
        operator = facts_of(run_collector("operator-key", "create", *data, "--json"))["operator"]
        file.write_text(TEXT_A.replace("[rounds]", f'operator = "{operator}"\n[rounds]'))
        opened = facts_of(run_collector("open", file, *data, *at, "--json"))
        address = opened["join"].removeprefix("allomfree-edge join ")
        manifest = Manifest.from_file(file)
        topics = Topics(manifest.campaign, namespace)
        unknown = f'operators = ["{signing.public_key(stranger).hex()}"]'
        assert "change policy.operators" in refused(3, unknown)
        good = retained(broker.port, topics.signature)[topics.signature]
        forged = Signature(digest8(manifest), signing.sign(stranger, manifest.digest)).encode()
        known = f'operators = {{ city = "{operator}" }}'
        for payload, fault in (
            (forged, "is wrong"),
            (good[:-1], "is not one"),
            (b"", "is not there"),
        ):
            put(topics.signature, payload)
            assert fault in refused(1, known)
        put(topics.manifest, A.to_bytes())
        assert "the manifest is not the one invited to" in refused(1)
        with CollectorProcess(tmp_path / "data", *at) as service:
            service.wait_for("collecting for")  # which publishes both again
            with Watcher(broker.port, topics.signature, topics.manifest) as watcher:
                watcher.wait_for_topic(topics.signature, good)
                watcher.wait_for_topic(topics.manifest, manifest.to_bytes())
            config.write_text(f'state_dir = "{tmp_path / "state"}"\n[policy]\n{known}\n')
            done = run_edge("join", address, "--yes", "--config", config)
            joined = " ".join(done.stdout.split())
            assert f"Signed by city ({operator}), verified" in joined, done.stderr
