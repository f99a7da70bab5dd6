"""`allomfree-edge`: every command helps with an example, speaks JSON, and ends with its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from edge_client.__main__ import main
from edge_client.settings import SETTINGS
from edge_client.store import Store
from protocol_spec import Manifest
from testbed.brokers import Nats, Tally
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge import NOBODY, rows

VERBS = sorted(main.commands)
WITH_JSON = ("join", "show", "status", "report", "doctor")


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A manifest file whose first round is open now."""
    path = tmp_path / "heat.toml"
    path.write_text(manifest_text(slug=os.urandom(4).hex()), encoding="utf-8")
    return path


@pytest.fixture
def joined(cli: Cli, asked: Path, state: Path) -> Path:
    words = ("--manifest", asked, "--broker", NOBODY, "--yes", "--state-dir", state)
    result = cli("join", *words)
    assert result.exit_code == 0, result.stderr
    assert "This device will answer 'fuel', for life." in result.stdout
    return state


def facts(result: Result) -> Any:
    return json.loads(result.stdout)


def test_the_commands_are_those_people_type() -> None:
    words = "join show status run report pause resume leave forget doctor"
    assert set(words.split()) <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_helps_with_an_example(cli: Cli, verb: str) -> None:
    result = cli(verb, "--help")
    assert result.exit_code == 0
    assert f"\n  allomfree-edge {verb}" in result.stdout
    for setting in SETTINGS:
        assert setting.flag in result.stdout
    assert verb not in WITH_JSON or "--json" in result.stdout


def test_the_program_helps_with_an_example_and_says_its_version(cli: Cli) -> None:
    result = cli("--help")
    assert "\n  allomfree-edge join mqtts://" in result.stdout
    assert all(f"\n  {verb} " in result.stdout for verb in VERBS)
    assert cli("--version").stdout.startswith("allomfree-edge, version ")


@pytest.mark.parametrize("words", [["fly"], ["join", "--nope"], ["report", "--timeout", "soon"]])
def test_a_wrong_word_is_a_mistake_in_settings(cli: Cli, words: list[str]) -> None:
    result = cli(*words)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_join_previews_without_joining(cli: Cli, asked: Path, state: Path) -> None:
    words = ("join", "--manifest", asked, "--broker", NOBODY, "--state-dir", state, "--preview")
    text = cli(*words)
    assert text.exit_code == 0
    assert "What heats your home?" in text.stdout
    shown = facts(cli(*words, "--json"))
    assert shown["campaign"] == Manifest.from_file(asked).campaign
    assert [a["attribute"] for a in shown["attributes"]] == ["fuel"]
    assert rows(state)["campaign"] == []


def test_join_speaks_json(cli: Cli, asked: Path, state: Path) -> None:
    words = ("join", "--manifest", asked, "--broker", NOBODY, "--state-dir", state, "--json")
    told = facts(cli(*words, "--yes"))
    assert told.keys() == {"campaign", "device", "attribute", "rounds", "warning"}
    told_again = facts(cli(*words, answer="y\n"))
    assert told_again == told


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--manifest", "x.toml"],
        ["--broker", NOBODY],
        ["mqtt://localhost/allomfree/x-1a2b3c4d", "--manifest", "x.toml", "--broker", NOBODY],
    ],
)
def test_join_needs_one_way_to_the_campaign(cli: Cli, state: Path, words: list[str]) -> None:
    result = cli("join", *words, "--state-dir", state)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert not state.exists()


def test_show_and_status_before_and_after_joining(cli: Cli, asked: Path, state: Path) -> None:
    assert "No campaign joined." in cli("show", "--state-dir", state).stdout
    everything = {"source": "*", "used": 0.0, "allowed": 8.0}
    nothing = {"campaigns": [], "ledger": [], "budgets": [everything], "clock": ""}
    assert facts(cli("show", "--state-dir", state, "--json")) == nothing
    assert "No campaign joined." in cli("status", "--state-dir", state).stdout
    cli("join", "--manifest", asked, "--broker", NOBODY, "--yes", "--state-dir", state)
    name = Manifest.from_file(asked).campaign
    shown = facts(cli("show", name[:6], "--state-dir", state, "--json"))
    assert shown["campaigns"][0]["campaign"] == name
    (standing,) = facts(cli("status", "--state-dir", state, "--json"))["campaigns"]
    assert (standing["campaign"], standing["state"]) == (name, "round 0 is open")
    assert (standing["queued"], standing["reports"], standing["last_round"]) == (0, 0, None)


def test_pause_resume_and_leave(cli: Cli, joined: Path) -> None:
    def status() -> Any:
        return facts(cli("status", "--state-dir", joined, "--json"))["campaigns"][0]["status"]

    for verb, said, becomes in (
        ("pause", "Paused", "paused"),
        ("resume", "Resumed", "joined"),
        ("leave", "Left", "left"),
        ("resume", "Resumed", "joined"),
    ):
        result = cli(verb, "--state-dir", joined)
        assert result.exit_code == 0
        assert result.stdout.startswith(said)
        assert status() == becomes
    whats = [what for _, _, _, what in rows(joined)["decision"]]
    assert whats == ["joined", "paused", "joined", "left", "joined"]


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "leave", "forget"])
def test_an_unknown_campaign_is_said_with_those_there_are(
    cli: Cli, joined: Path, verb: str
) -> None:
    result = cli(verb, "nothing-like-it", "--state-dir", joined)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: nothing-like-it is not a joined campaign; joined are:")


def test_a_report_is_counted(cli: Cli, state: Path, asked: Path, nats: Nats) -> None:
    campaign = Manifest.from_file(asked)
    address = f"{nats.url}/allomfree/{campaign.campaign}"
    with Tally(nats.port, campaign) as tally:
        assert cli("join", address, "--yes", "--state-dir", state).exit_code == 0
        result = cli("report", "--value", "fuel=wood", "--state-dir", state, "--json")
        again = cli("report", "--value", "fuel=wood", "--state-dir", state)
    told = {"campaign": campaign.campaign, "round": 0, "state": "counted"}
    assert (result.exit_code, facts(result)) == (0, {"reports": [told]})
    assert again.stdout == f"{campaign.campaign}: round 0: counted\n"
    assert len(tally.deliveries) == 1
    (sent,) = facts(cli("show", "--state-dir", state, "--json"))["campaigns"][0]["sent"]
    assert sent["bytes"] == tally.deliveries[0][1].hex(" ")


def test_sources_of_the_configuration_are_used(cli: Cli, joined: Path, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(f'state_dir = "{joined}"\n[sources.fuel]\nvalue = "gas"\n')
    result = cli("report", "--config", config, "--timeout", "0")
    assert len(rows(joined)["memo"]) == 1
    assert "round 0" in result.stdout


def test_forget_asks_wipes_and_keeps_the_ledger(cli: Cli, joined: Path) -> None:
    cli("report", "--value", "fuel=wood", "--state-dir", joined, "--timeout", "0")
    refused = cli("forget", "--state-dir", joined, answer="n\n")
    assert (refused.exit_code, len(rows(joined)["memo"])) == (3, 1)
    assert "Nothing was changed." in refused.stderr
    result = cli("forget", "--yes", "--state-dir", joined)
    assert result.exit_code == 0
    assert "no trace is left. The collector was not told: the broker" in result.stdout
    assert (rows(joined)["memo"], len(rows(joined)["ledger"])) == ([], 1)
    shown = facts(cli("show", "--state-dir", joined, "--json"))
    assert [line["epsilon"] for line in shown["ledger"]] == [2.0]


def test_forget_lost_says_what_stays_booked(cli: Cli, joined: Path) -> None:
    cli("report", "--value", "fuel=wood", "--state-dir", joined, "--timeout", "0")
    assert cli("forget", "--lost", "--yes", "--state-dir", joined).exit_code == 1
    (joined / "state.db").unlink()
    refused = cli("status", "--state-dir", joined)
    assert refused.exit_code == 1
    assert f"allomfree-edge forget --state-dir {joined} --lost" in refused.stderr
    result = cli("forget", "--lost", "--yes", "--state-dir", joined)
    assert result.exit_code == 0
    assert result.stdout.endswith("Stays booked as spent: 2 on fuel.\n")


def test_doctor_finds_a_sound_agent_sound(
    cli: Cli, state: Path, asked: Path, nats: Nats, tmp_path: Path
) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(f'state_dir = "{state}"\n[sources.fuel]\nvalue = "gas"\n')
    cli("join", "--manifest", asked, "--broker", nats.url, "--yes", "--config", config)
    result = cli("doctor", "--config", config, "--json")
    assert result.exit_code == 0, result.stdout
    found = {finding["check"]: finding["ok"] for finding in facts(result)}
    assert found == dict.fromkeys(("state", "clock", "policy", "source", "broker"), True)
    assert "gas" not in result.output
    assert rows(state)["memo"] == []


def test_doctor_names_everything_that_is_wrong(cli: Cli, joined: Path, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(
        f'state_dir = "{joined}"\n[policy]\nmax_eps_inf = 1\n[sources.fuel]\nvalue = "marmalade"\n'
    )
    result = cli("doctor", "--config", config)
    assert result.exit_code == 1
    assert [line[:14].split(":")[0] for line in result.stdout.splitlines()] == [
        "ok    state",
        "ok    clock",
        "FAIL  policy",
        "ok    source",
        "FAIL  broker",
    ]
    assert "marmalade" not in result.output


@pytest.mark.parametrize(
    ("broker", "text", "finding"),
    [
        (NOBODY, "[sources.fuel]\nkind = 'magic'\n", "edge.toml: sources.fuel.kind"),
        (NOBODY, "[sources]\nfuel = 'marmalade'\n", "edge.toml: sources.fuel must be a table"),
        (NOBODY, "password_file = '/no/such/file'\n", "FAIL  state: the password file"),
        ("mqtt://192.0.2.1", "", "FAIL  broker: mqtt://192.0.2.1:1883 is not encrypted"),
    ],
)
def test_doctor_finds_mistakes_in_the_configuration(
    cli: Cli, state: Path, asked: Path, tmp_path: Path, broker: str, text: str, finding: str
) -> None:
    words = ("--broker", broker, "--allow-plaintext", "--yes", "--state-dir", state)
    assert cli("join", "--manifest", asked, *words).exit_code == 0
    config = tmp_path / "edge.toml"
    config.write_text(f'state_dir = "{state}"\n{text}')
    result = cli("doctor", "--config", config)
    assert result.exit_code == 1
    assert finding in result.stdout
    assert "marmalade" not in result.output


def test_doctor_names_a_state_that_cannot_be_used(cli: Cli, joined: Path) -> None:
    (joined / "highwater").write_bytes(b"")
    (joined / "state.db").unlink()
    result = cli("doctor", "--state-dir", joined)
    assert result.exit_code == 1
    assert result.stdout.startswith("FAIL  state: ")
    assert f"allomfree-edge forget --state-dir {joined} --lost" in result.stdout


def test_everything_works_beside_a_running_agent(cli: Cli, joined: Path) -> None:
    """What only looks or decides needs no lock; what draws or wipes does."""
    with Store(joined, exclusive=True):
        for verb in ("show", "status", "pause", "resume"):
            assert cli(verb, "--state-dir", joined).exit_code == 0
        for verb in ("report", "run", "forget"):
            extra = ("--yes",) if verb == "forget" else ()
            result = cli(verb, *extra, "--state-dir", joined)
            assert result.exit_code == 1
            assert "another agent" in result.stderr


def test_the_installed_program_ends_with_the_same_code(joined: Path, home: Path) -> None:
    command = [sys.executable, "-m", "edge_client", "report", "--value", "marmalade"]
    done = subprocess.run(
        [*command, "--state-dir", str(joined)],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --value: write ATTRIBUTE=VALUE")
    assert done.stdout == ""
