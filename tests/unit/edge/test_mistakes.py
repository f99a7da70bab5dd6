"""Ten mistakes people make: each gives one clear line, the right code, and nothing is lost by it.

The line says what happened, what was or was not drawn, sent or spent, and what to do next.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from edge_client.store import Store
from testbed.brokers import Mosquitto
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge import NOBODY, rows
from tests.support.harness import need, path_of

SOMEWHERE = "allomfree/home-heat-1a2b3c4d"


def asked(directory: Path, **options: Any) -> Path:
    path = directory / "heat.toml"
    created = f"created = {options.pop('created')}\n" if "created" in options else ""
    path.write_text(created + manifest_text(**options), encoding="utf-8")
    return path


def join(cli: Cli, state: Path, *words: object, broker: str = NOBODY, **options: Any) -> Result:
    file = asked(state.parent, **options)
    return cli(
        "join", "--manifest", file, "--broker", broker, "--yes", "--state-dir", state, *words
    )


def assert_one_clear_line(result: Result, code: int, *told: str) -> None:
    """One line of its own on standard error; log lines, if any, are JSON."""
    errors = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    logs = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert len(errors) == 1, result.stderr
    assert errors[0].startswith("error: ")
    assert "Traceback" not in result.output
    for words in told:
        assert words in errors[0], errors[0]
    assert all(log["level"] == "warning" for log in logs)
    assert result.exit_code == code


# --- 1: the address ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [f"http://b.example/{SOMEWHERE}", "b.example", "mqtts://b.example/home", "mqtt://x:y"],
)
def test_a_wrong_address(cli: Cli, state: Path, address: str) -> None:
    result = cli("join", address, "--yes", "--state-dir", state)
    assert_one_clear_line(result, 2, "write it like mqtts://broker.example/")


def test_an_address_with_a_typing_error(cli: Cli, state: Path) -> None:
    result = cli("join", f"mqtts://broker..example/{SOMEWHERE}", "--yes", "--state-dir", state)
    assert_one_clear_line(result, 1, "broker..example", "Nothing was drawn, sent or spent")


def test_an_unencrypted_address(cli: Cli, state: Path) -> None:
    result = cli("join", f"mqtt://192.0.2.1/{SOMEWHERE}", "--yes", "--state-dir", state)
    assert_one_clear_line(result, 2, "not encrypted", "nothing was sent", "--allow-plaintext")


# --- 2: the password ---------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Mosquitto]:
    """mosquitto that knows one user."""
    need("mosquitto")
    passwords = tmp_path / "passwords"
    program = path_of("mosquitto_passwd")
    subprocess.run([program, "-b", "-c", str(passwords), "heater", "right"], check=True)
    broker = Mosquitto(tmp_path / "mosquitto")
    # Started by root it becomes another user, who could not read the file.
    broker.extra = f"user root\nallow_anonymous false\npassword_file {passwords}\n"
    with broker as running:
        yield running


def test_a_wrong_password(
    cli: Cli, state: Path, guarded: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOMFREE_PASSWORD", "hunter2")
    known = ("--username", "heater", "--credentials-for", guarded.url)
    words = ("join", f"{guarded.url}/{SOMEWHERE}", *known, "--state-dir", state)
    result = cli(*words)
    assert_one_clear_line(
        result, 1, "refused the connection", "--password-file", "Nothing was drawn, sent or spent"
    )
    assert "hunter2" not in result.output
    monkeypatch.setenv("ALLOMFREE_PASSWORD", "right")
    result = cli(*words, "--timeout", "0.5")
    assert_one_clear_line(result, 1, "has no campaign home-heat-1a2b3c4d", "nothing was drawn")


def test_a_password_file_that_is_not_there(cli: Cli, state: Path, tmp_path: Path) -> None:
    result = cli("report", "--state-dir", state, "--password-file", tmp_path / "gone")
    assert_one_clear_line(result, 2, "gone cannot be read: No such file", "Nothing was drawn")


# --- 3: the broker is away ---------------------------------------------------------------------


def test_joining_while_the_broker_is_away(cli: Cli, state: Path) -> None:
    result = cli("join", f"{NOBODY}/{SOMEWHERE}", "--yes", "--state-dir", state)
    assert_one_clear_line(result, 1, NOBODY, "refused", "Nothing was drawn, sent or spent")


def test_reporting_while_the_broker_is_away(cli: Cli, state: Path) -> None:
    join(cli, state)
    result = cli("report", "--value", "fuel=wood", "--state-dir", state, "--timeout", "0.1")
    assert_one_clear_line(
        result,
        1,
        "stored but not sent",
        NOBODY,
        "Try again with: allomfree-edge report --state-dir",
    )
    status = json.loads(cli("status", "--state-dir", state, "--json").stdout)["campaigns"][0]
    assert (status["queued"], status["reports"], status["epsilon_charged"]) == (1, 1, 2.0)


# --- 4: the campaign is over -------------------------------------------------------------------


def test_a_campaign_that_has_ended(cli: Cli, state: Path) -> None:
    result = join(cli, state, first=1_600_000_000, count=3)
    assert_one_clear_line(result, 1, "has ended", "nothing was drawn, sent or spent", "clock")
    assert rows(state)["campaign"] == []


# --- 5: the policy -----------------------------------------------------------------------------


def test_a_policy_that_is_too_strict(cli: Cli, state: Path, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text("[policy]\nmax_eps_inf = 1.5\n")
    result = join(cli, state, "--config", config)
    told = ("eps_inf = 2, more than 1.5", "nothing was drawn, sent or spent", "policy.max_eps_inf")
    assert_one_clear_line(result, 3, *told)
    assert rows(state)["campaign"] == []


def test_a_policy_that_became_too_strict(cli: Cli, state: Path, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    join(cli, state)
    config.write_text("[policy]\ncampaigns = []\n")
    result = cli("report", "--value", "fuel=wood", "--state-dir", state, "--config", config)
    assert_one_clear_line(result, 3, "nothing was drawn, sent or spent", "policy.campaigns")
    assert rows(state)["memo"] == []


# --- 6: the configuration ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("keepalive = \n", "is not TOML"),
        ("keep_alive = 5\n", "keep_alive is not a setting"),
        ("keepalive = 'x'\n", "keepalive = 'x'"),
        ("[policy]\nmax_eps = 1\n", "policy.max_eps is not a limit"),
    ],
)
def test_a_bad_configuration(cli: Cli, state: Path, tmp_path: Path, text: str, told: str) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(text)
    result = cli("run", "--config", config, "--state-dir", state)
    assert_one_clear_line(result, 2, str(config), told, "Nothing was drawn or sent")
    assert not state.exists()


def test_a_bad_source(cli: Cli, state: Path, tmp_path: Path) -> None:
    join(cli, state)
    config = tmp_path / "edge.toml"
    config.write_text("[sources.fuel]\nkind = 'comand'\ncommand = ['x']\n")
    result = cli("run", "--config", config, "--state-dir", state)
    assert_one_clear_line(result, 2, "sources.fuel.kind = 'comand'", "choose one of command")


def test_a_bad_manifest_lists_all_that_is_wrong(cli: Cli, state: Path) -> None:
    result = join(cli, state, eps_1=-1.0, count=0)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    first, *problems = result.stderr.splitlines()
    assert "is not a valid manifest; nothing was sent." in first
    named = [problem.partition("heat.toml: ")[2].split(" ")[0] for problem in problems]
    assert set(named) == {"eps_1", "rounds.count"}


# --- 7: the value ------------------------------------------------------------------------------


def test_a_value_without_its_attribute(cli: Cli, state: Path) -> None:
    result = cli("report", "--value", "marmalade", "--state-dir", state)
    assert_one_clear_line(result, 2, "--value: write ATTRIBUTE=VALUE", "nothing was drawn")
    assert "marmalade" not in result.output


# --- 8: the state directory --------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["status", "report", "run", "show"])
def test_a_state_directory_that_cannot_be_used(cli: Cli, state: Path, verb: str) -> None:
    state.write_text("a file")
    result = cli(verb, "--state-dir", state)
    assert_one_clear_line(result, 1, f"{state} cannot be used", "Nothing was drawn or sent")
    assert "--state-dir" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_state_directory(cli: Cli, state: Path) -> None:
    state.mkdir(mode=0o700)
    os.chown(state, 12345, 12345)
    result = cli("run", "--state-dir", state)
    assert_one_clear_line(result, 1, "belongs to another user", "nothing was drawn or sent")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("verb", ["status", "report"])
def test_a_state_directory_that_cannot_be_read(cli: Cli, state: Path, verb: str) -> None:
    join(cli, state)
    state.chmod(0o000)
    result = cli(verb, "--state-dir", state)
    state.chmod(0o700)
    assert_one_clear_line(result, 1, str(state), "Permission denied", "drawn or sent")


def test_a_state_directory_open_to_others(cli: Cli, state: Path) -> None:
    join(cli, state)
    state.chmod(0o755)
    result = cli("status", "--state-dir", state)
    assert_one_clear_line(result, 1, "can be read by other users", f"chmod 700 {state}")


@pytest.mark.parametrize("name", ["highwater", "lock", "state.db"])
def test_a_directory_in_the_place_of_a_file(cli: Cli, state: Path, name: str) -> None:
    join(cli, state)
    (state / name).unlink(missing_ok=True)
    (state / name).mkdir(mode=0o700)
    result = cli("report", "--state-dir", state)
    assert_one_clear_line(result, 1, str(state), "drawn or sent")


# --- 9: a second process -----------------------------------------------------------------------


def test_a_second_process(cli: Cli, state: Path) -> None:
    with Store(state, exclusive=True):
        result = cli("run", "--state-dir", state)
    told = (f"another agent (process {os.getpid()})", "nothing was drawn or sent", "Stop it first")
    assert_one_clear_line(result, 1, *told)


# --- 10: the clock -----------------------------------------------------------------------------


def test_a_clock_before_the_campaign(cli: Cli, state: Path) -> None:
    """A manifest that was made in the future: for this device it is 1970."""
    soon = int(time.time()) + 10_000_000
    result = join(cli, state, first=soon, created=soon - 1)
    assert result.exit_code == 0
    result = cli("report", "--value", "fuel=wood", "--state-dir", state)
    told = ("the clock is before the campaign's creation", "nothing was drawn or sent", "Set the")
    assert_one_clear_line(result, 1, *told)
    assert rows(state)["memo"] == []
    assert "FAIL  clock" in cli("doctor", "--state-dir", state).stdout


def test_a_campaign_opened_ahead_of_its_start_is_no_mistake(cli: Cli, state: Path) -> None:
    """It does not say when it was made, so that nothing speaks against the clock."""
    joined = join(cli, state, first=int(time.time()) + 10_000_000)
    assert joined.exit_code == 0
    assert "The first round begins at 2" in joined.stderr
    result = cli("report", "--value", "fuel=wood", "--state-dir", state)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "the first round has not begun; it begins at 2" in result.stdout
    assert rows(state)["memo"] == []
    assert "FAIL  clock" not in cli("doctor", "--state-dir", state).stdout


def test_a_report_without_a_campaign_fails(cli: Cli, state: Path) -> None:
    """cron sends its owner a mail: nothing could be sent."""
    result = cli("report", "--state-dir", state)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: no campaign is joined; nothing was drawn or sent. "
        f"See: allomfree-edge join --state-dir {state}\n"
    )
    assert cli("report", "--state-dir", state, "--json").stdout == '{"reports": []}\n'
