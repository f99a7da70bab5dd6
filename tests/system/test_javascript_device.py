"""A second implementation, written from the specification: it passes all vectors that
concern a device, and is counted by a real collector behind a real broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from collector.data_dir import open_store
from protocol_spec import Manifest, Report, decode_report, receipt_tag, report_fault
from testbed.collector import CollectorProcess
from testbed.processes import Process
from tests.support.campaigns import second_manifest
from tests.support.harness import JAVASCRIPT, ROOT, need, path_of
from tests.support.protocol import vectors

EXAMPLE = ROOT / "examples/javascript-device"
PATIENCE = 120.0
VALUES = {"fuel": "gas", "lamp": "led"}
TWO = """[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
[[attributes]]
name = "lamp"
question = "Which lamps?"
values = ["led", "none", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"]
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as somebody has it after `npm ci`."""
    need("node", "javascript-device")
    place = tmp_path_factory.mktemp("javascript") / "device"
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("node_modules"))
    (place / "node_modules").symlink_to(JAVASCRIPT)
    return place


def node(script: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [path_of("node"), str(script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


# --- vectors -------------------------------------------------------------------------------------
# No device needs these: what an author writes, what a collector reads and estimates.
NOT_A_DEVICES = {
    *("manifests.refused", "messages.unfit", "topics.parsed", "mechanisms.levels"),
    *(
        f"{file}.{name}"
        for file in ("changes", "estimators", "statistics")
        for name in vectors.load(f"{file}.json")
    ),
}


def lists() -> dict[str, int]:
    """Every list of the vectors, and how many of its entries concern a device."""
    found = {}
    for path in vectors.FOLDER.glob("*.json"):
        for name, entries in vectors.load(path.name).items():
            if isinstance(entries, list | dict):
                of_devices = [e for e in entries if not of_results(e)]
                found[f"{path.stem}.{name}"] = len(of_devices)
    return {name: count for name, count in found.items() if name not in NOT_A_DEVICES}


def of_results(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("kind") == "result"


def test_it_passes_every_vector_that_concerns_a_device(program: Path) -> None:
    done = node(program / "vectors.js", vectors.FOLDER)
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert done.returncode == 0, done.stderr
    assert told["checked"] == lists()


def test_its_own_tests_pass(program: Path) -> None:
    command = [path_of("node"), "--test", str(program / "device.test.js")]
    variables = {**os.environ, "VECTORS": str(vectors.FOLDER), "TMPDIR": str(program)}
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout


# --- one counted report --------------------------------------------------------------------------
@contextmanager
def collecting(data: Path, manifest: Manifest) -> Iterator[CollectorProcess]:
    with closing(open_store(data)) as store:
        store.open_campaign(manifest, manifest.created)
    with CollectorProcess(data) as collector:
        collector.wait_until_connected()
        yield collector


def state_of(device: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((device / "memory.json").read_text(encoding="utf-8"))
    joined: dict[str, Any] = found["campaign"]
    return joined


def test_it_joins_by_its_invitation_and_is_counted_once(program: Path, tmp_path: Path) -> None:
    """From the link to the receipt; killed after the draw, it sends the same bytes again."""
    manifest = second_manifest(period=4, count=2000, grace=3600, attributes=TWO)
    device, values = tmp_path / "device", tmp_path / "values.json"
    values.write_text(json.dumps(VALUES), encoding="utf-8")
    run = ("run", "--state", device, "--values", values, "--once")
    with collecting(tmp_path / "data", manifest) as collector:
        place = f"{collector.broker_url}/allomfree"
        wrong = f"{place}/{manifest.full_name[:-1]}{'0' if manifest.full_name[-1] != '0' else '1'}"
        refused = node(program / "device.js", "join", wrong, "--state", device, "--yes")
        assert refused.returncode == 2
        assert "not the one you were invited to" in refused.stderr
        joining = node(
            program / "device.js",
            "join",
            f"{place}/{manifest.full_name}",
            "--state",
            device,
            "--yes",
        )
        assert joining.returncode == 0, joining.stderr
        assert manifest.digest.hex() in joining.stdout

        os.kill(collector.pid, signal.SIGSTOP)  # the broker goes on: it is sent, and not counted
        stored = drawn_alone(program, *run, device=device)
        os.kill(collector.pid, signal.SIGCONT)
        done = node(program / "device.js", *run)
        assert done.returncode == 0, done.stderr
        assert ": counted" in done.stdout
        joined = state_of(device)
        assert joined["outbox"] == {}
        check_report(manifest, stored, joined)
        with collector.store() as store:
            outcomes = {str(outcome): count for outcome, count in store.outcomes().items()}
    assert outcomes.pop("accepted") >= 1
    assert outcomes.keys() <= {"duplicate"}


def drawn_alone(program: Path, *words: object, device: Path) -> dict[str, str]:
    """Run until a report is stored, then kill -9; what was stored."""
    command = [path_of("node"), str(program / "device.js"), *map(str, words)]
    with Process("the device", command, device / "log") as process:
        process.wait_for("a report to be stored", lambda: bool(state_of(device)["outbox"]))
        process.kill()
    outbox: dict[str, str] = state_of(device)["outbox"]
    return outbox


def check_report(manifest: Manifest, stored: dict[str, str], joined: dict[str, Any]) -> None:
    """The stored bytes are a sound report of this device, and its memo was drawn once."""
    for number, payload in stored.items():
        report = decode_report(bytes.fromhex(payload))
        assert isinstance(report, Report), report
        assert report_fault(report, manifest) is None
        assert receipt_tag(manifest, int(number), joined["device"])
    assert joined["charged"] == manifest.eps_inf
    assert len(joined["memos"]) == 1


# --- what it refuses -----------------------------------------------------------------------------
def test_a_lost_or_older_memory_is_refused(program: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    values.write_text(json.dumps(VALUES), encoding="utf-8")
    for memory in (None, {"version": 3, "campaign": None}):
        (tmp_path / "mark.json").write_text('{"version": 4}', encoding="utf-8")
        (tmp_path / "memory.json").unlink(missing_ok=True)
        if memory:
            (tmp_path / "memory.json").write_text(json.dumps(memory), encoding="utf-8")
        done = node(program / "device.js", "run", "--state", tmp_path, "--values", values)
        assert done.returncode == 2
        assert "nothing was drawn or sent" in done.stderr


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("mqtt://broker.example/demo-86a56d7a", "only for a broker on this machine"),
        ("mqtts://me:secret@broker.example/demo-86a56d7a", "no user name or password"),
        ("mqtts://broker.example/allomfree/demo", "names no campaign"),
        ("https://broker.example/demo-86a56d7a", "no address"),
    ],
)
def test_addresses_that_are_none(program: Path, tmp_path: Path, address: str, told: str) -> None:
    done = node(program / "device.js", "join", address, "--state", tmp_path / "device")
    assert done.returncode == 2
    assert told in done.stderr
    assert "secret" not in done.stderr


def test_its_packages_are_exact_and_name_no_registry() -> None:
    package = json.loads((EXAMPLE / "package.json").read_text(encoding="utf-8"))
    assert all(version[0].isdigit() for version in package["dependencies"].values())
    lock = json.loads((EXAMPLE / "package-lock.json").read_text(encoding="utf-8"))
    locked = {name: found for name, found in lock["packages"].items() if name}
    assert all("integrity" in found and "resolved" not in found for found in locked.values())
    assert lock["packages"][""]["dependencies"] == package["dependencies"]
