"""Mistakes people make: each gives one clear line, the right code, and nothing is lost by it.

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

from edge_client import Credentials, EdgeClient, EdgeError
from edge_client.errors import SettingsError
from edge_client.settings import resolve
from protocol_spec import Manifest
from protocol_spec.programs.settings import parse_broker
from testbed.brokers import Mosquitto
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge import FUELS, NOBODY, ROOM, rows, way_text
from tests.support.harness import need, path_of

SOMEWHERE = "allomfree/home-heat-1a2b3c4d"


def written(directory: Path, **options: Any) -> Path:
    path = directory / "heat.toml"
    created = f"created = {options.pop('created')}\n" if "created" in options else ""
    path.write_text(created + manifest_text(**options), encoding="utf-8")
    return path


def join(cli: Cli, state: Path, *words: object, broker: str = NOBODY, **options: Any) -> Result:
    file = written(state.parent, **options)
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


# --- 1: an address or an option -----------------------------------------------------------------


EXAMPLE, NOTHING = "write it like mqtts://broker.example/", "Nothing was drawn, sent or spent"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["join", f"http://b.example/{SOMEWHERE}"], 2, [EXAMPLE]),
        (["join", "b.example"], 2, [EXAMPLE]),
        (["join", "mqtts://b.example/home"], 2, [EXAMPLE]),
        (["join", "mqtt://x:y"], 2, [EXAMPLE]),
        (["join", f"mqtts://broker..example/{SOMEWHERE}"], 1, ["broker..example", NOTHING]),
        (
            ["join", f"mqtt://192.0.2.1/{SOMEWHERE}"],
            2,
            ["not encrypted", "nothing was sent", "--allow-plaintext"],
        ),
        (["join", f"{NOBODY}/{SOMEWHERE}"], 1, [NOBODY, "refused", NOTHING]),
        (["report", "--password-file", "/gone"], 2, ["gone cannot be read: No such file"]),
        (["report", "--value", "marmalade"], 2, ["write ATTRIBUTE=VALUE", "nothing was drawn"]),
    ],
)
def test_a_wrong_word(cli: Cli, state: Path, words: list[str], code: int, told: list[str]) -> None:
    result = cli(*words, "--state-dir", state)
    assert_one_clear_line(result, code, *told)
    assert "marmalade" not in result.output


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


# --- 3: the broker is away ---------------------------------------------------------------------


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


def test_a_bad_manifest_lists_all_that_is_wrong(cli: Cli, state: Path) -> None:
    result = join(cli, state, eps_1=-1.0, count=0)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    first, *problems = result.stderr.splitlines()
    assert "is not a valid manifest; nothing was sent." in first
    named = [problem.partition("heat.toml: ")[2].split(" ")[0] for problem in problems]
    assert set(named) == {"eps_1", "rounds.count"}


# --- 8: the state directory --------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["status", "report", "run", "show"])
def test_a_state_directory_that_cannot_be_used(cli: Cli, state: Path, verb: str) -> None:
    state.write_text("a file")
    result = cli(verb, "--state-dir", state)
    assert_one_clear_line(result, 1, f"{state} cannot be used", "Nothing was drawn or sent")
    assert "--state-dir" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("verb", ["status", "report"])
def test_a_state_directory_that_cannot_be_read(cli: Cli, state: Path, verb: str) -> None:
    join(cli, state)
    state.chmod(0o000)
    result = cli(verb, "--state-dir", state)
    state.chmod(0o700)
    assert_one_clear_line(result, 1, str(state), "Permission denied", "drawn or sent")


@pytest.mark.parametrize("name", ["highwater", "lock", "state.db"])
def test_a_directory_in_the_place_of_a_file(cli: Cli, state: Path, name: str) -> None:
    join(cli, state)
    (state / name).unlink(missing_ok=True)
    (state / name).mkdir(mode=0o700)
    result = cli("report", "--state-dir", state)
    assert_one_clear_line(result, 1, str(state), "drawn or sent")


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


# --- Mistakes of owners that went unnoticed, or got an answer that did not help.


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A campaign in which every value has a place, so that nothing is refused for its value."""
    file = tmp_path / "heat.toml"
    file.write_text(way_text("memoized", attributes=FUELS + ROOM, first=None), encoding="utf-8")
    return file


@pytest.fixture
def joined(cli: Cli, asked: Path, state: Path) -> Path:
    words = ("--manifest", asked, "--broker", NOBODY, "--yes", "--state-dir", state)
    assert cli("join", *words).exit_code == 0
    return state


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("fule=gas", 'fule is not a question of a joined campaign; did you mean "fuel"?'),
        ("fule=nonsense", 'fule is not a question of a joined campaign; did you mean "fuel"?'),
        ("weather=gas", "weather is not a question of a joined campaign; those are: fuel, room."),
    ],
)
def test_a_misspelt_question_is_told_before_anything_is_drawn(
    cli: Cli, joined: Path, given: str, told: str
) -> None:
    """As if there were no value, the device would have answered "other" for life."""
    words = ("--value", "room=21", "--value", given, "--state-dir", joined, "--timeout", "0.1")
    done = cli("report", *words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr == f"error: --value: {told} Nothing was drawn or sent\n"
    assert rows(joined)["memo"] == rows(joined)["outbox"] == rows(joined)["ledger"] == []


def test_every_question_may_be_given_whichever_was_drawn(cli: Cli, joined: Path) -> None:
    words = ("--value", "fuel=gas", "--value", "room=21", "--state-dir", joined, "--timeout", "0.1")
    assert "stored but not sent" in cli("report", *words).stderr
    assert len(rows(joined)["memo"]) == 1


def test_a_finding_of_doctor_can_be_pasted(cli: Cli, state: Path) -> None:
    told = f"none joined; see allomfree-edge join --state-dir {state}"
    assert f"FAIL  campaigns: {told}\n" in cli("doctor", "--state-dir", state).stdout
    findings = json.loads(cli("doctor", "--state-dir", state, "--json").stdout)
    assert told in [each["finding"] for each in findings]


@pytest.mark.parametrize(
    ("language", "told"),
    [
        ("en", "This device has already joined {name} and stays in it; nothing was changed."),
        (
            "de",
            "Dieses Gerät ist {name} schon beigetreten und bleibt dabei; nichts wurde geändert.",
        ),
        ("fr", "Cet appareil participe déjà à {name} et continue ; rien n’a été changé."),
    ],
)
def test_who_declines_what_is_joined_already_is_told_that_it_stays(
    cli: Cli, asked: Path, joined: Path, language: str, told: str
) -> None:
    name = Manifest.from_file(asked).campaign
    words = ("--manifest", asked, "--broker", NOBODY, "--state-dir", joined)
    done = cli("join", *words, "--language", language, answer="n\n")
    assert done.exit_code == 3
    assert told.format(name=name) in done.stderr
    assert f"allomfree-edge leave {name} --state-dir {joined}" in done.stderr
    assert "Not joined" not in done.stderr
    cli("leave", "--state-dir", joined)
    assert "Not joined" in cli("join", *words, answer="n\n").stderr


@pytest.mark.parametrize("words", [(), ("home-heat",)])
def test_forget_without_a_campaign_asks_nothing(
    cli: Cli, state: Path, words: tuple[str, ...]
) -> None:
    done = cli("forget", *words, "--state-dir", state, answer="y\n")
    assert (done.exit_code, done.stdout) == (1, "")
    told = "this device has joined no campaign; nothing was sent or spent"
    assert done.stderr == f"error: {told}\n"


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("min_period = '2d'", "min_period = 86400"),
        ("max_eps_inf = 1.5", "max_eps_inf = 2.0"),
        ("campaigns = ['a*']", 'campaigns = ["a*", "{name}"]'),
        ("sources = ['x']", 'sources = ["x", "fuel", "room"]'),
    ],
)
def test_a_preview_shows_what_the_policy_refuses_and_what_would_allow_it(
    cli: Cli, asked: Path, state: Path, tmp_path: Path, policy: str, line: str
) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(f"[policy]\n{policy}\n")
    words = ("--manifest", asked, "--broker", NOBODY, "--config", config, "--state-dir", state)
    done = cli("join", *words, "--preview")
    assert done.exit_code == 3
    assert "What heats your home?" in done.stdout
    limit = line.partition(" ")[0]
    line = line.format(name=Manifest.from_file(asked).campaign)
    told = f"change policy.{limit} in {config}: {line}, below [policy]"
    assert done.stderr.endswith(f"If you agree to it, {told}\n")
    shown = cli("join", *words, "--preview", "--json")
    assert (shown.exit_code, shown.stderr) == (3, done.stderr)
    assert json.loads(shown.stdout)["campaign"].startswith("test-")
    refused = cli("join", *words, "--yes")
    assert (refused.exit_code, refused.stdout, refused.stderr) == (3, "", done.stderr)
    assert rows(state)["campaign"] == []
    config.write_text(f"[policy]\n{line}\n")
    assert cli("join", *words, "--preview").exit_code == 0


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_not(
    cli: Cli, asked: Path, state: Path, tmp_path: Path
) -> None:
    config = tmp_path / "edge.toml"
    config.write_text("[policy]\nlifetime_budget = 1\ntotal_budget = 1\n")
    words = ("--manifest", asked, "--broker", NOBODY, "--config", config, "--state-dir", state)
    told = [cli("join", *words, "--yes").stderr]
    config.write_text("[policy]\nlifetime_budget = 2.0\ntotal_budget = 1\n")
    told.append(cli("join", *words, "--yes").stderr)
    assert f"in {config}: lifetime_budget = 2.0, below [policy]" in told[0]
    assert f"in {config}: total_budget = 2.0, below [policy]" in told[1]
    config.write_text("[policy]\nlifetime_budget = 2.0\ntotal_budget = 2.0\n")
    assert cli("join", *words, "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('valu = "marmalade"', 'or write value = ...; did you mean "value"?'),
        ('kindd = "command"\ncommand = ["true"]', 'or write value = ...; did you mean "kind"?'),
        ('x = "marmalade"', "choose a kind of command, json, machine, plugin, static, or write"),
        ('kind = "static"\nvalu = "marmalade"', "unexpected keyword argument 'valu'"),
    ],
)
@pytest.mark.parametrize("verb", ["report", "run", "doctor"])
def test_a_wrong_table_of_a_source_is_told_with_its_file(
    cli: Cli, joined: Path, tmp_path: Path, verb: str, table: str, told: str
) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(f"[sources.fuel]\n{table}\n")
    done = cli(verb, "--config", config, "--state-dir", joined)
    assert done.exit_code == (1 if verb == "doctor" else 2)
    assert f"{config}: sources.fuel: " in done.output
    assert told in done.output
    assert "marmalade" not in done.output


# --- One tree of errors: whoever catches `EdgeError` has caught every mistake in a setting.


def test_every_mistake_in_a_setting_is_an_edge_error(tmp_path: Path) -> None:
    """Also those that code shared with the collector finds."""
    file = tmp_path / "edge.toml"
    file.write_text("no_setting = 1\n")
    missing = Credentials("me", "secret", ca_file=str(tmp_path / "none.pem"))
    with EdgeClient(tmp_path / "state", credentials=missing) as client:
        for mistake in (
            lambda: resolve({}, config=file),
            lambda: resolve({"password_file": str(tmp_path / "none")}).credentials(),
            lambda: EdgeClient(tmp_path / "other", credentials_for=["mqtts://me@b"]),
            lambda: client.invitation("http://broker.example"),
            lambda: client.connector.link(parse_broker("mqtts://localhost")),
            lambda: client.connector.link(parse_broker("mqtt://192.0.2.1")),
        ):
            with pytest.raises(EdgeError) as refused:
                mistake()
            assert type(refused.value) is SettingsError
            assert (refused.value.exit_code, isinstance(refused.value, ValueError)) == (2, True)
