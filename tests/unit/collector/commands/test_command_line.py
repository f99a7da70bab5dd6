"""The command line: help, settings, next commands, checks, collecting and the operator's key."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from collector.commands import main
from collector.data_dir import only_service, read_store
from collector.errors import CollectorError, StorageFailure
from collector.health import Health, Heartbeat, Status, findings
from collector.opening import OperatorKey
from collector.records import Campaign
from collector.settings import SETTINGS
from protocol_spec import Manifest
from protocol_spec.programs import signing
from tests.support.brokers import Files
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken
from tests.support.databases import new_schema
from tests.support.harness import need
from tests.support.hostile import TEXT_A


def test_numpy_starts_no_threads() -> None:
    """Nobody multiplies matrices here; whoever wants the threads says so in the environment."""
    code = "import collector.__main__, numpy, os; print(len(os.listdir('/proc/self/task')))"
    usual = {name: text for name, text in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=usual, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_every_command_takes_every_setting_and_no_secret_and_has_a_line_of_help(cli: Cli) -> None:
    overview = cli("--help").stdout
    for name, verb in main.commands.items():
        flags = {flag for option in verb.params for flag in option.opts}
        assert {setting.flag for setting in SETTINGS} | {"--config"} <= flags
        assert not flags & {"--password", "--key", "--secret"}
        assert f"\n  {name} " in overview


@pytest.mark.parametrize(
    "words", [["revoke", "kitchen"], ["revoke", "kitchen", "--undo"], ["seal"], ["close", "--yes"]]
)
def test_a_mistyped_data_directory_is_not_made(cli: Cli, home: Path, words: list[str]) -> None:
    """Else the collector that was meant would know nothing of it."""
    mistyped, empty = home / "dta", home / "empty"
    empty.mkdir(mode=0o700)
    for place in (mistyped, empty):
        error = mistaken(cli, 1, *words, "--data-dir", place)
        assert f"there is no collector's database in {place}; open a campaign first" in error
    assert not mistyped.exists()
    assert not list(empty.iterdir())


def test_a_mistyped_database_is_left_empty(cli: Cli, data: Path) -> None:
    need("postgres")
    address = new_schema()
    for words in (["revoke", "kitchen"], ["seal"], ["close", "--yes"]):
        error = mistaken(cli, 1, *words, "--data-dir", data, "--store", address.url)
        assert "holds no collector's tables; open a campaign first" in error
    with pytest.raises(StorageFailure, match="holds no collector's tables"):
        read_store(data, address)
    assert not data.exists()


def test_errors_in_settings_end_with_what_did_not_happen(cli: Cli, home: Path, data: Path) -> None:
    (home / "c.toml").write_text("brocker = 'mqtts://broker.example'\n")
    (home / "d.toml").mkdir()
    wrong: list[list[object]] = [
        ["status", "--config", home / "c.toml"],
        ["status", "--config", home / "d.toml"],
        ["status", "--keepalive", "0"],
        ["run", "--data-dir", data, "--broker", NOBODY, "--password-file", home / "nosuch"],
    ]
    for words in wrong:
        error = mistaken(cli, 2, *words)
        assert "drawn" not in error, "it is the agent that draws"
        assert error.endswith(". Nothing was changed\n")
    assert 'brocker is not a setting; did you mean "broker"?' in mistaken(cli, 2, *wrong[0])
    secret = ["status", "--broker", "mqtts://me:secret@broker.example"]
    assert "Use --username and --password-file" in mistaken(cli, 2, *secret)
    for typed in (["nosuch"], ["plan"], ["status", "--nosuch"], ["export", "--format", "xml"]):
        unknown = cli(*typed)
        assert (unknown.exit_code, unknown.stdout) == (2, "")
        assert "-h" in unknown.stderr
    assert cli("-h").stdout == cli("--help").stdout


# --- A command that is printed as the next step can be pasted: it names the same data directory ---


def printed_commands(cli: Cli, *words: object) -> list[list[str]]:
    """The commands in what a command prints, as a shell would split them."""
    done = cli(*words)
    text = re.sub(r" {8}\(.*\)|[.;]$|\. Nothing.*", "", done.stdout + done.stderr)
    found = re.findall(r"allomfree-collector [^\n]*", text)
    assert found, text
    return [shlex.split(line) for line in found]


@pytest.fixture
def flags(data: Path) -> list[str]:
    """With what a shell would take apart."""
    return ["--data-dir", f"{data} of mine"]


def test_next_commands_can_be_pasted(cli: Cli, home: Path, file: Path, flags: list[str]) -> None:
    broker = ["--broker", NOBODY]
    key, run, invite = printed_commands(cli, "open", file, *flags, *broker)
    assert invite[:6] == ["allomfree-collector", "invite", *flags, *broker]
    assert cli(*invite[1:]).exit_code == 0
    assert run == ["allomfree-collector", "run", *flags, *broker]
    assert key == ["allomfree-collector", "operator-key", *flags, *broker, "create"]
    assert cli(*key[1:]).exit_code == 0
    (restore,) = printed_commands(cli, "backup", home / "b 2", "--secrets", home / "s 2", *flags)
    places = [str(home / "b 2"), "--secrets", str(home / "s 2")]
    assert restore == ["allomfree-collector", "restore", *flags, *places]
    (configure,) = printed_commands(cli, "enrol", "kitchen", *flags)
    assert cli(*configure[1:-1], "localhost").exit_code == 0, "where it says HOST"


def test_a_device_is_given_the_brokers_own_authority(
    cli: Cli, file: Path, home: Path, flags: list[str]
) -> None:
    Files.made(home)
    ours = (home / "ca.pem").rename(home / "our ca.pem")
    done = cli("open", file, *flags, "--broker", "mqtts://127.0.0.1:1", "--ca-file", ours)
    (join,) = re.findall(r"allomfree-edge join .*", done.stdout)
    assert shlex.split(join)[-2:] == ["--ca-file", str(ours)]


# --- `health`, `doctor` and `revoke` --------------------------------------------------------------


def test_health(cli: Cli, data: Path, used: Campaign) -> None:
    silent = cli("health", "--data-dir", data, "--json")
    assert silent.exit_code == 1
    assert json.loads(silent.stdout)["finding"].startswith("no collector is running")
    Heartbeat(data).beat(Status(connected=True, trouble=""))
    assert facts_of(cli("health", "--data-dir", data, "--json"))["healthy"] is True
    shown = cli("health", "--data-dir", data).stdout
    assert shown.splitlines()[0] == "ok    service: connected and counting"


def test_what_health_and_status_warn_of(cli: Cli, data: Path, used: Campaign) -> None:
    """Each with its next step; none is a fault, so the exit code stays 0."""
    trouble = Status(
        connected=True,
        trouble="",
        waiting={"heat": {"round": 1, "until": None, "why": "the broker"}},
        unproven={"heat": 3},
        clock="the clock was set ahead",
        page="port 9180 cannot be used",
        plaintext="mqtt://broker.example:1883",
        certificate=time.time() + 86_400 * 29.5,
    )
    Heartbeat(data).beat(trouble)
    done = cli("health", "--data-dir", data)
    assert done.exit_code == 0
    shown = done.stdout.replace("\n      ", " -> ").splitlines()
    rest = [line for line in shown[1:] if "disk" not in line]
    assert [line.split(":")[0] for line in rest] == [
        "warn  sealing", "warn  sealing", "warn  clock", "warn  page", "warn  broker",
        "warn  certificate",
    ]  # fmt: skip
    assert all(" -> " in line for line in rest), rest
    status = cli("status", "--data-dir", data).stdout.replace("\n      ", " -> ")
    assert all(line in status for line in rest)
    Heartbeat(data).beat(replace(trouble, trouble="the disk is full"))
    failed = cli("health", "--data-dir", data)
    assert failed.exit_code == 1
    assert failed.stdout.startswith("FAIL  service: the disk is full\n      See: ")


def test_a_disk_that_is_nearly_full(data: Path) -> None:
    health = Health(True, "connected and counting")

    def warns(size: int, left: int) -> bool:
        found = findings(data, health, lambda _: (size, size - left, left))
        return any(each.what == "disk" and each.level == "warn" for each in found)

    assert [warns(10**12, left) for left in (2**30 - 1, 2**30)] == [True, False]
    assert [warns(10**9, left) for left in (10**9 // 20 - 1, 10**9 // 20)] == [True, False]


def test_doctor(cli: Cli, data: Path, used: Campaign) -> None:
    done = cli("doctor", "--data-dir", data, "--broker", NOBODY, "--json")
    assert done.exit_code == 1
    found = {f["check"]: (f["ok"], f["finding"]) for f in json.loads(done.stdout)}
    assert found["database"] == (True, "every message received has one outcome")
    assert found["campaigns"] == (True, used.name)
    assert found["device key"][0] is False, "reports came, so a missing key is a lost one"
    assert found["broker"][0] is False
    text = cli("doctor", "--data-dir", data, "--broker", NOBODY)
    assert "FAIL  broker: the broker mqtt://127.0.0.1:1 cannot be used" in text.stdout


def revoked(data: Path) -> frozenset[str]:
    with closing(read_store(data)) as store:
        return frozenset(store.revoked())


def test_a_device_is_revoked_before_anything_was_opened(cli: Cli, data: Path) -> None:
    """Its credential may be lost on the first day."""
    cli("broker-config", "nats", "--host", "localhost", "--data-dir", data)
    cli("enrol", "kitchen", "--data-dir", data)
    facts = facts_of(cli("revoke", "kitchen", "--data-dir", data, "--json"))
    assert (facts["enrolled"], facts["changed"]) == (True, True)
    assert revoked(data) == {"kitchen"}


def test_a_device_that_was_not_enrolled_here_is_revoked_and_the_undo_is_printed(
    cli: Cli, data: Path, used: Campaign
) -> None:
    lines = cli("revoke", "nobody", "--data-dir", data).stdout.splitlines()
    assert revoked(data) == {"nobody"}
    assert lines[0] == "nobody is revoked: its reports are refused."
    assert lines[1].startswith("No device nobody was enrolled here: whoever runs the broker")
    assert lines[1].endswith("If the name is wrong, undo it:")
    undone = cli(*lines[2].split()[1:]).stdout
    assert undone.startswith("nobody is no longer revoked")
    assert "undo it" not in undone
    assert revoked(data) == frozenset()
    error = mistaken(cli, 2, "revoke", "Kitchen 7", "--data-dir", data)
    assert "invalid device name 'Kitchen 7': use 1 to 32 of a-z" in error


def test_a_readers_name_without_its_prefix(cli: Cli, data: Path, used: Campaign) -> None:
    cli("broker-config", "nats", "--host", "localhost", "--data-dir", data)
    cli("enrol", "home-1", "--reader", "home", "--data-dir", data)
    text = cli("revoke", "home", "--data-dir", data).stdout
    assert "NO DEVICE home was enrolled here. If the name is wrong, undo it" in text
    text = cli("revoke", "Reader-home", "--data-dir", data).stdout
    assert "credential for the broker is no longer" in text


# --- `run` and `seal` -----------------------------------------------------------------------------


def test_seal(cli: Cli, data: Path, used: Campaign) -> None:
    facts = facts_of(cli("seal", "--data-dir", data, "--json"))
    assert facts == {"campaign": used.name, "sealed": []}
    assert "nothing was due" in cli("seal", "--data-dir", data).stdout
    assert facts_of(cli("seal", "--early", "--data-dir", data, "--json"))["sealed"] == [1]
    with closing(read_store(data)) as store:
        assert store.last_sealed(used.id) == 1


def test_why_run_refuses_to_start(cli: Cli, home: Path, data: Path, used: Campaign) -> None:
    words = ("run", "--broker", NOBODY, "--data-dir")
    with only_service(data):
        error = mistaken(cli, 1, *words, data)
    assert "another collector is running" in error
    assert "nothing was changed" in error
    error = mistaken(cli, 1, *words, data)
    assert "device.key is missing; nothing was changed. Restore it" in error
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        error = mistaken(cli, 1, *words, home / "new", "--listen", address)
    assert f"{address} cannot be listened on: Address already in use" in error


# --- The operator's key: made once, private, replaced on purpose; `open` signs with it (P4) -------


@pytest.fixture
def signed(home: Path, data: Path, cli: Cli) -> Path:
    """A manifest that names the key of the data directory."""
    operator = facts_of(cli("operator-key", "create", "--data-dir", data, "--json"))["operator"]
    file = home / "signed.toml"
    file.write_text(TEXT_A.replace("[rounds]", f'operator = "{operator}"\n[rounds]'))
    return file


def test_a_key_is_made_once_and_private(cli: Cli, data: Path) -> None:
    words = ("operator-key", "--data-dir", data)
    assert f"operator-key --data-dir {data} create" in mistaken(cli, 1, *words)
    made = facts_of(cli(*words, "create", "--json"))
    file = Path(made["file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert signing.public_key(file.read_bytes()).hex() == made["operator"]
    text = cli(*words).stdout
    assert f'operator = "{made["operator"]}"' in text
    assert file.read_bytes().hex() not in text
    assert "there is already an operator key" in mistaken(cli, 1, *words, "create")
    assert facts_of(cli(*words, "--json")) == made


def test_rotation_asks_first(cli: Cli, data: Path, signed: Path) -> None:
    before = OperatorKey(data).public
    refused = cli("operator-key", "rotate", "--data-dir", data, answer="n\n")
    assert (refused.exit_code, OperatorKey(data).public) == (1, before)
    assert "Nothing was changed." in refused.stderr
    facts = facts_of(cli("operator-key", "rotate", "--yes", "--data-dir", data, "--json"))
    assert facts["previous"] == before.hex()
    assert facts["operator"] == OperatorKey(data).public.hex() != before.hex()


def test_what_open_signed_stays_signed_after_a_rotation(cli: Cli, data: Path, signed: Path) -> None:
    words = ("open", signed, "--data-dir", data, "--broker", NOBODY)
    manifest = Manifest.from_file(signed)
    facts = facts_of(cli(*words, "--json"))
    assert facts["operator"] == manifest.operator.hex()
    with closing(read_store(data)) as store:
        signature = store.signature(store.campaign(None).id)
    assert signing.is_signed_by(manifest.operator, manifest.digest, signature)
    cli("operator-key", "rotate", "--yes", "--data-dir", data)
    assert f"Signed by {facts['operator']}" in cli(*words).stdout
    signed.write_text(signed.read_text().replace("First", "Third"))
    error = mistaken(cli, 1, *words)
    assert "names the operator" in error
    assert "nothing was opened" in error


def test_open_with_a_key_that_is_not_named_or_not_there(cli: Cli, data: Path, signed: Path) -> None:
    words = ("open", signed, "--data-dir", data, "--broker", NOBODY)
    named, key = signed.read_text(), OperatorKey(data)
    signed.write_text(TEXT_A)
    assert f'Add operator = "{key.public.hex()}"' in mistaken(cli, 1, *words)
    signed.write_text(named)
    key.path.unlink()
    assert "there is no key here; nothing was opened" in mistaken(cli, 1, *words)
    with closing(read_store(data)) as store:
        assert store.campaigns() == []
    key.create()
    signed.write_text(TEXT_A)
    assert "Unsigned: " in cli(*words, "--unsigned").stdout


def test_a_key_that_cannot_be_used(tmp_path: Path) -> None:
    key = OperatorKey(tmp_path)
    key.create()
    key.path.chmod(0o640)
    with pytest.raises(StorageFailure, match="can be read by others"):
        _ = key.public
    key.path.chmod(0o600)
    key.path.write_bytes(b"short")
    with pytest.raises(StorageFailure, match="is damaged"):
        key.create()
    key.path.unlink()
    with pytest.raises(CollectorError, match="there is no operator key"):
        key.rotate()
