"""Mistakes of owners that went unnoticed, or got an answer that did not help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol_spec import Manifest
from tests.support.command_line import Cli
from tests.support.edge import FUELS, NOBODY, ROOM, rows, way_text


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


def test_forget_names_what_is_joined_before_it_asks(cli: Cli, joined: Path) -> None:
    done = cli("forget", "heat", "--state-dir", joined, answer="y\n")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: heat is not a joined campaign; joined are: test-")
    assert len(rows(joined)["campaign"]) == 1


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
