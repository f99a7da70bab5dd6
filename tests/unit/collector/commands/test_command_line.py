"""The command line: help, settings, next commands, checks, collecting and the operator's key."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import pytest

from collector.commands import main
from collector.commands.options import command
from collector.commands.reading import watched
from collector.data_dir import only_service, read_store
from collector.errors import CollectorError, StorageFailure
from collector.health import Heartbeat, Status
from collector.opening import OperatorKey
from collector.records import Campaign
from collector.settings import SETTINGS, Settings
from protocol_spec import Manifest
from protocol_spec.programs import signing
from tests.support.brokers import Files
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken
from tests.support.databases import new_schema
from tests.support.harness import ROOT, need
from tests.support.hostile import TEXT_A

WITHOUT = """
import sys
sys.modules["numpy"] = None  # as if it were not installed
from collector.__main__ import main
sys.argv = ["allomfree-collector", "status"]
main()
"""


def test_a_missing_library_is_one_line_and_exit_2() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "pip install '.[collector]', in a copy of the source" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_overview_needs_none_of_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("status", "--help")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  status " in done.stdout


def test_numpy_starts_no_threads() -> None:
    """Nobody multiplies matrices here; whoever wants the threads says so in the environment."""
    code = "import collector.__main__, numpy, os; print(len(os.listdir('/proc/self/task')))"
    usual = {name: text for name, text in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=usual, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


# --- Commands and settings.


COMMANDS = sorted(main.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_every_setting(name: str) -> None:
    flags = {flag for option in main.commands[name].params for flag in option.opts}
    assert {setting.flag for setting in SETTINGS} | {"--config"} <= flags


def test_every_command_has_a_line_in_the_overview(cli: Cli) -> None:
    shown = cli("--help").stdout
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert "allomfree-collector" in cli("--version").stdout


@pytest.mark.parametrize(
    "words", [["revoke", "kitchen"], ["revoke", "kitchen", "--undo"], ["seal"], ["close", "--yes"]]
)
def test_a_mistyped_data_directory_is_not_made(cli: Cli, home: Path, words: list[str]) -> None:
    """Else the collector that was meant would know nothing of it."""
    mistyped, empty = home / "dta", home / "empty"
    empty.mkdir(mode=0o700)
    for place in (mistyped, empty):
        told = mistaken(cli, 1, *words, "--data-dir", place)
        assert f"there is no collector's database in {place}; open a campaign first" in told
    assert not mistyped.exists()
    assert not list(empty.iterdir())


@pytest.mark.parametrize("words", [["revoke", "kitchen"], ["seal"], ["close", "--yes"]])
def test_a_mistyped_database_is_left_empty(cli: Cli, data: Path, words: list[str]) -> None:
    need("postgres")
    address = new_schema()
    told = mistaken(cli, 1, *words, "--data-dir", data, "--store", address.url)
    assert "holds no collector's tables; open a campaign first" in told
    with pytest.raises(StorageFailure, match="holds no collector's tables"):
        read_store(data, address)
    assert not data.exists()


def test_a_device_is_revoked_before_anything_was_opened(cli: Cli, data: Path) -> None:
    """Its credential may be lost on the first day."""
    cli("broker-config", "nats", "--host", "localhost", "--data-dir", data)
    cli("enrol", "kitchen", "--data-dir", data)
    told = facts_of(cli("revoke", "kitchen", "--data-dir", data, "--json"))
    assert (told["enrolled"], told["changed"]) == (True, True)
    with closing(read_store(data)) as store:
        assert store.revoked() == {"kitchen"}


def test_no_secret_is_a_flag() -> None:
    options = [o for c in main.commands.values() for o in c.params if isinstance(o, click.Option)]
    assert not {flag for o in options for flag in o.opts} & {"--password", "--key", "--secret"}


def test_errors_in_settings_use_the_collectors_words(cli: Cli, home: Path, data: Path) -> None:
    """It is the agent that draws."""
    (home / "c.toml").write_text("brocker = 'mqtts://broker.example'\n")
    (home / "d.toml").mkdir()
    wrong: list[list[object]] = [
        ["status", "--config", home / "c.toml"],
        ["status", "--config", home / "d.toml"],
        ["status", "--keepalive", "0"],
        ["run", "--data-dir", data, "--broker", NOBODY, "--password-file", home / "nosuch"],
    ]
    for words in wrong:
        told = mistaken(cli, 2, *words)
        assert "drawn" not in told
        assert told.endswith(". Nothing was changed\n")
    assert 'brocker is not a setting; did you mean "broker"?' in mistaken(cli, 2, *wrong[0])
    secret = ["status", "--broker", "mqtts://me:secret@broker.example"]
    assert "Use --username and --password-file" in mistaken(cli, 2, *secret)
    (data / "collector.db").write_bytes(b"no database" * 100)
    told = mistaken(cli, 1, "status", "--data-dir", data)
    assert "drawn" not in told


@pytest.mark.parametrize(
    "words", [["nosuch"], ["plan"], ["status", "--nosuch"], ["export", "--format", "xml"]]
)
def test_words_the_command_line_does_not_know(cli: Cli, words: list[str]) -> None:
    shown = cli(*words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "--help" in shown.stderr or "-h" in shown.stderr
    assert cli("-h").stdout == cli("--help").stdout


# --- What a command tells to type next can be pasted: it names the same data directory.


COMMAND = re.compile(r"allomfree-collector [^\n]*")


def told(cli: Cli, *words: object) -> list[list[str]]:
    """The commands that a command prints, as a shell would split them."""
    done = cli(*words)
    found = COMMAND.findall(re.sub(r" {8}\(.*\)|[.;]$|\. Nothing.*", "", done.stdout + done.stderr))
    assert found, done.stdout + done.stderr
    return [shlex.split(line) for line in found]


@pytest.fixture
def flags(data: Path) -> list[str]:
    """With what a shell would take apart."""
    return ["--data-dir", f"{data} of mine"]


def test_after_open(cli: Cli, file: Path, flags: list[str]) -> None:
    broker = ["--broker", NOBODY]
    key, run, invite = told(cli, "open", file, *flags, *broker)
    assert invite[:6] == ["allomfree-collector", "invite", *flags, *broker]
    assert cli(*invite[1:]).exit_code == 0
    assert run == ["allomfree-collector", "run", *flags, *broker]
    assert key == ["allomfree-collector", "operator-key", *flags, *broker, "create"]
    assert cli(*key[1:]).exit_code == 0
    (again,) = told(cli, "close", "--yes", *flags)
    assert again == ["allomfree-collector", "run", *flags]


def test_after_backup_and_restore(
    cli: Cli, home: Path, data: Path, file: Path, flags: list[str]
) -> None:
    cli("open", file, *flags, "--broker", NOBODY)
    places = [home / "b 2", "--secrets", home / "s 2"]
    (restore,) = told(cli, "backup", *places, *flags)
    assert restore == ["allomfree-collector", "restore", *flags, *map(str, places)]
    shutil.rmtree(f"{data} of mine")
    doctor, run = told(cli, *restore[1:])
    assert doctor == ["allomfree-collector", "doctor", *flags]
    assert run == ["allomfree-collector", "run", *flags]


def test_while_watching(data: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def seen_enough(_seconds: float) -> None:
        raise KeyboardInterrupt

    @command
    def status(_settings: Settings) -> None:
        """Watch."""
        watched(lambda: "kitchen", False, "See: allomfree-collector revoke {}".format, seen_enough)

    root = click.Group("allomfree-collector", {"status": status, "revoke": main.commands["revoke"]})
    root.main(["status", *flags], standalone_mode=False)
    assert f"revoke --data-dir '{data} of mine' kitchen" in capsys.readouterr().out


def test_every_command_prints_with_settings() -> None:
    """`show` of both programs' commands does not complete what it prints; ours does."""
    for file in sorted((ROOT / "collector/commands").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "protocol_spec.programs.cli":
                assert "show" not in {each.name for each in node.names}, file.name


def test_after_configuring_a_broker(cli: Cli, flags: list[str]) -> None:
    run, enrol, doctor = told(cli, "broker-config", "nats", "--host", "localhost", *flags)
    assert run == ["allomfree-collector", "run", *flags]
    assert doctor == ["allomfree-collector", "doctor", *flags]
    assert cli(*enrol[1:]).exit_code == 0


def test_errors(cli: Cli, flags: list[str]) -> None:
    (configure,) = told(cli, "enrol", "kitchen", *flags)
    configure[-1] = "localhost"  # where it says HOST
    assert configure[:4] == ["allomfree-collector", "broker-config", *flags]
    assert cli(*configure[1:]).exit_code == 0


def test_a_broker_with_an_authority_of_its_own(
    cli: Cli, file: Path, home: Path, flags: list[str]
) -> None:
    """A device that shall join needs it, too."""
    Files.made(home)
    ours = (home / "ca.pem").rename(home / "our ca.pem")
    shown = cli("open", file, *flags, "--broker", "mqtts://127.0.0.1:1", "--ca-file", ours)
    (join,) = re.findall(r"allomfree-edge join .*", shown.stdout)
    assert shlex.split(join)[-2:] == ["--ca-file", str(ours)]


# --- `health`, `doctor` and `revoke`.


def test_health(cli: Cli, data: Path, used: Campaign) -> None:
    silent = cli("health", "--data-dir", data, "--json")
    assert silent.exit_code == 1
    assert json.loads(silent.stdout)["finding"].startswith("no collector is running")
    Heartbeat(data).beat(Status(connected=True, trouble=""))
    assert facts_of(cli("health", "--data-dir", data, "--json"))["healthy"] is True
    assert cli("health", "--data-dir", data).stdout == "connected and counting\n"


def test_doctor(cli: Cli, data: Path, used: Campaign) -> None:
    shown = cli("doctor", "--data-dir", data, "--broker", NOBODY, "--json")
    assert shown.exit_code == 1
    found = {f["check"]: (f["ok"], f["finding"]) for f in json.loads(shown.stdout)}
    assert found["database"] == (True, "every message received has one outcome")
    assert found["campaigns"] == (True, used.name)
    assert found["device key"][0] is False, "reports came, so a missing key is a lost one"
    assert found["broker"][0] is False
    text = cli("doctor", "--data-dir", data, "--broker", NOBODY)
    assert "FAIL  broker: the broker mqtt://127.0.0.1:1 cannot be used" in text.stdout


def test_revoke_and_undo(cli: Cli, data: Path, used: Campaign) -> None:
    assert cli("revoke", "kitchen-7", "--data-dir", data).exit_code == 0
    with closing(read_store(data)) as store:
        assert store.revoked() == {"kitchen-7"}
    assert "is no longer revoked" in cli("revoke", "kitchen-7", "--undo", "--data-dir", data).stdout
    with closing(read_store(data)) as store:
        assert store.revoked() == frozenset()


def test_a_device_that_nobody_enrolled_without_a_broker_here(
    cli: Cli, data: Path, used: Campaign
) -> None:
    told = cli("revoke", "nobody", "--data-dir", data).stdout.splitlines()
    assert told[0] == "nobody is revoked: its reports are refused."
    assert told[1].startswith("No device nobody was enrolled here: whoever runs the broker manages")
    assert told[1].endswith("If the name is wrong, undo it:")
    undone = cli(*told[2].split()[1:]).stdout
    assert undone.startswith("nobody is no longer revoked"), "it can be pasted"
    assert "undo it" not in undone


def test_a_readers_name_without_its_prefix(cli: Cli, data: Path, used: Campaign) -> None:
    cli("broker-config", "nats", "--host", "localhost", "--data-dir", data)
    cli("enrol", "home-1", "--reader", "home", "--data-dir", data)
    told = cli("revoke", "home", "--data-dir", data).stdout
    assert "NO DEVICE home was enrolled here. Did you mean Reader-home or home-1?" in told
    assert (
        "credential for the broker is no longer"
        in cli("revoke", "Reader-home", "--data-dir", data).stdout
    )


def test_a_name_that_no_device_can_have(cli: Cli, data: Path) -> None:
    assert "invalid device name 'Kitchen 7': use 1 to 32 of a-z" in mistaken(
        cli, 2, "revoke", "Kitchen 7", "--data-dir", data
    )


# --- `run` and `seal`: what they do, and why they refuse to start.


def test_seal(cli: Cli, data: Path, used: Campaign) -> None:
    told = facts_of(cli("seal", "--data-dir", data, "--json"))
    assert told == {"campaign": used.name, "sealed": []}
    assert "nothing was due" in cli("seal", "--data-dir", data).stdout
    assert facts_of(cli("seal", "--early", "--data-dir", data, "--json"))["sealed"] == [1]
    with closing(read_store(data)) as store:
        assert store.last_sealed(used.id) == 1


def test_run_refuses_a_second_collector_and_a_lost_key(
    cli: Cli, data: Path, used: Campaign
) -> None:
    with only_service(data):
        told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY)
    assert "another collector is running" in told
    assert "nothing was changed" in told
    told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY)
    assert "device.key is missing; nothing was changed. Restore it" in told


def test_a_port_that_is_taken(cli: Cli, data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY, "--listen", address)
    assert f"{address} cannot be listened on: Address already in use" in told


# --- The operator's key: made once, private, replaced on purpose; `open` signs with it (P4).


@pytest.fixture
def signed(home: Path, data: Path, cli: Cli) -> Path:
    """A manifest that names the key of the data directory."""
    operator = facts_of(cli("operator-key", "create", "--data-dir", data, "--json"))["operator"]
    file = home / "signed.toml"
    file.write_text(TEXT_A.replace("[rounds]", f'operator = "{operator}"\n[rounds]'))
    return file


def test_a_key_is_made_once_and_private(cli: Cli, data: Path) -> None:
    assert f"operator-key --data-dir {data} create" in mistaken(
        cli, 1, "operator-key", "--data-dir", data
    )
    made = facts_of(cli("operator-key", "create", "--data-dir", data, "--json"))
    file = Path(made["file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert signing.public_key(file.read_bytes()).hex() == made["operator"]
    assert facts_of(cli("operator-key", "--data-dir", data, "--json")) == made
    text = cli("operator-key", "--data-dir", data).stdout
    assert f'operator = "{made["operator"]}"' in text
    assert file.read_bytes().hex() not in text
    assert "there is already an operator key" in mistaken(
        cli, 1, "operator-key", "create", "--data-dir", data
    )
    assert facts_of(cli("operator-key", "--data-dir", data, "--json")) == made


def test_rotation_asks_first(cli: Cli, data: Path, signed: Path) -> None:
    before = OperatorKey(data).public
    refused = cli("operator-key", "rotate", "--data-dir", data, answer="n\n")
    assert (refused.exit_code, OperatorKey(data).public) == (1, before)
    assert "Nothing was changed." in refused.stderr
    told = facts_of(cli("operator-key", "rotate", "--yes", "--data-dir", data, "--json"))
    assert told["previous"] == before.hex()
    assert told["operator"] == OperatorKey(data).public.hex() != before.hex()


def test_open_signs(cli: Cli, data: Path, signed: Path) -> None:
    words = ("open", signed, "--data-dir", data, "--broker", NOBODY)
    manifest = Manifest.from_file(signed)
    told = facts_of(cli(*words, "--json"))
    assert told["operator"] == manifest.operator.hex()
    assert f"Signed by {told['operator']}" in cli(*words).stdout
    with closing(read_store(data)) as store:
        signature = store.signature(store.campaign(None).id)
    assert signing.is_signed_by(manifest.operator, manifest.digest, signature)


def test_what_was_signed_stays_signed_after_a_rotation(cli: Cli, data: Path, signed: Path) -> None:
    words = ("open", signed, "--data-dir", data, "--broker", NOBODY)
    assert cli(*words).exit_code == 0
    cli("operator-key", "rotate", "--yes", "--data-dir", data)
    assert cli(*words).exit_code == 0
    signed.write_text(signed.read_text().replace("First", "Third"))
    told = mistaken(cli, 1, *words)
    assert "names the operator" in told
    assert "nothing was opened" in told


def test_a_key_that_is_not_named_must_be_meant(cli: Cli, data: Path, signed: Path) -> None:
    signed.write_text(TEXT_A)
    words = ("open", signed, "--data-dir", data, "--broker", NOBODY)
    told = mistaken(cli, 1, *words)
    assert f'Add operator = "{OperatorKey(data).public.hex()}"' in told
    opened = cli(*words, "--unsigned")
    assert opened.exit_code == 0
    assert "Unsigned: " in opened.stdout


def test_an_operator_without_a_key_here(cli: Cli, data: Path, signed: Path) -> None:
    (data / "operator.key").unlink()
    told = mistaken(cli, 1, "open", signed, "--data-dir", data, "--broker", NOBODY)
    assert "there is no key here; nothing was opened" in told
    with closing(read_store(data)) as store:
        assert store.campaigns() == []


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
