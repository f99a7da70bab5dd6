"""`allomfree-edge` and `EdgeClient`: what they do, and what they say when people make mistakes.

A mistake gives one line that says what happened, what was or was not drawn, sent or spent, and what
to do next; it ends with the right exit code, and nothing is lost by it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import Result

import edge_client
from edge_client import Credentials, EdgeClient, EdgeError, Policy, ReportState
from edge_client.__main__ import main
from edge_client.errors import PolicyRefusal, SettingsError
from edge_client.records import Queued
from edge_client.settings import SETTINGS, resolve
from edge_client.store import Store
from protocol_spec import (
    AllomfreeError,
    Manifest,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Topics,
    decode_request,
)
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import parse_broker
from testbed.brokers import Nats, Tally
from tests.support.campaigns import manifest, manifest_text
from tests.support.command_line import Cli, facts_of
from tests.support.edge import FUEL, NOBODY, QUICK, ROOM, ROOMY, MemoryTally, by_port, rows
from tests.support.network import Proxy
from tests.support.processes import wait_until

SENT = "sent, no receipt yet"
VERBS = sorted(main.commands)
WITH_JSON = ("join", "show", "status", "report", "doctor")


# --- the commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_helps_with_an_example(cli: Cli, verb: str) -> None:
    result = cli(verb, "--help")
    assert f"\n  allomfree-edge {verb}" in result.stdout
    assert not any(f" {setting.flag} " in result.stdout for setting in SETTINGS)
    every = cli(verb, "--help-all").stdout
    assert all(setting.flag in every for setting in SETTINGS)
    assert verb not in WITH_JSON or "--json" in result.stdout
    overview = cli("--help").stdout
    assert "\n  allomfree-edge join mqtts://" in overview
    assert f"\n  {verb} " in overview
    assert cli("--version").stdout.startswith("allomfree-edge, version ")


def test_join_previews_without_joining_and_prints_json(asked: Path, join: Cli, state: Path) -> None:
    assert "What heats your home?" in join("--preview").stdout
    preview = facts_of(join("--preview", "--json"))
    assert preview["campaign"] == Manifest.from_file(asked).campaign
    assert [a["attribute"] for a in preview["attributes"]] == ["fuel"]
    assert rows(state)["campaign"] == []
    facts = facts_of(join("--json", "--yes"))
    assert facts.keys() == {"campaign", "device", "attribute", "rounds", "trial", "warning"}
    assert facts_of(join("--json", answer="y\n")) == facts


def test_show_and_status_before_and_after_joining(
    cli: Cli, asked: Path, join: Cli, state: Path
) -> None:
    for verb in ("show", "status"):
        assert "No campaign joined." in cli(verb, "--state-dir", state).stdout
    everything = {"source": "*", "used": 0.0, "allowed": 8.0}
    nothing = {"campaigns": [], "ledger": [], "budgets": [everything], "clock": ""}
    assert facts_of(cli("show", "--state-dir", state, "--json")) == nothing
    join("--yes")
    name = Manifest.from_file(asked).campaign
    shown = facts_of(cli("show", name[:6], "--state-dir", state, "--json"))
    assert shown["campaigns"][0]["campaign"] == name
    (status,) = facts_of(cli("status", "--state-dir", state, "--json"))["campaigns"]
    assert (status["campaign"], status["state"]) == (name, "round 0 is open")
    assert (status["queued"], status["reports"], status["last_round"]) == (0, 0, None)


def test_pause_resume_and_leave(cli: Cli, joined_state: Path) -> None:
    here = ("--state-dir", joined_state)
    for verb, printed, becomes in (
        ("pause", "Paused", "paused"),
        ("resume", "Resumed", "joined"),
        ("leave", "Left", "left"),
        ("resume", "Resumed", "joined"),
    ):
        assert cli(verb, *here).stdout.startswith(printed)
        assert facts_of(cli("status", *here, "--json"))["campaigns"][0]["status"] == becomes
    decisions = [what for _, _, _, what in rows(joined_state)["decision"]]
    assert decisions == ["joined", "paused", "joined", "left", "joined"]
    unknown = cli("pause", "nothing-like-it", *here)
    known = "nothing-like-it is not a joined campaign; joined are: t-"
    assert_one_clear_line(unknown, 1, known)


def test_a_report_is_counted(cli: Cli, state: Path, asked: Path, nats: Nats) -> None:
    campaign = Manifest.from_file(asked)
    report = ("report", "--value", "fuel=wood", "--state-dir", state)
    with Tally(nats.port, campaign) as tally:
        address = f"{nats.url}/allomfree/{campaign.campaign}"
        assert cli("join", address, "--yes", "--state-dir", state).exit_code == 0
        result, again = cli(*report, "--json"), cli(*report)
    counted = {"campaign": campaign.campaign, "round": 0, "state": "counted"}
    assert facts_of(result) == {"reports": [counted]}
    assert again.stdout == f"{campaign.campaign}: round 0: counted\n"
    assert len(tally.deliveries) == 1
    (sent,) = facts_of(cli("show", "--state-dir", state, "--json"))["campaigns"][0]["sent"]
    assert sent["bytes"] == tally.deliveries[0][1].hex(" ")


def test_a_visit_says_what_is_confirmed_and_what_is_outstanding(
    cli: Cli, state: Path, nats: Nats
) -> None:
    """NATS speaks MQTT 3.1.1 alone, which is found out once."""
    with Proxy(nats.port) as proxy:
        asked = manifest(slug=f"t-{os.urandom(4).hex()}", period=2, grace=3600)
        with EdgeClient(state, policy=ROOMY) as client:
            client.join(client.invitation(manifest=asked, broker=proxy.url), device="device")
            first = client.agent.draw(client.find(), lambda _: "wood")
        assert isinstance(first, Queued)
        wait_until(lambda: asked.rounds.round_at(time.time()) != first.round)
        visit = ("report", "--all", "--value", "fuel=wood", "--state-dir", state)
        alone = cli(*visit, "--timeout", "1")
        assert proxy.accepted == 2
        assert alone.exit_code == 1
        assert alone.stdout.splitlines()[0] == f"{asked.campaign}: round {first.round}: {SENT}"
        assert "0 confirmed, 2 outstanding: " in alone.stderr
        with Tally(nats.port, asked):
            printed = facts_of(cli(*visit, "--json"))["reports"]
        assert proxy.accepted == 3
        assert [each["state"] for each in printed] == ["counted"] * len(printed)
        assert printed[0]["round"] == first.round
        assert len(printed) in (2, 3), "another round may have begun"


def test_forget_asks_wipes_and_keeps_the_ledger(cli: Cli, joined_state: Path) -> None:
    here = ("--state-dir", joined_state)
    cli("report", "--value", "fuel=wood", *here, "--timeout", "0")
    refused = cli("forget", *here, answer="n\n")
    assert (refused.exit_code, len(rows(joined_state)["memo"])) == (3, 1)
    assert "Nothing was changed." in refused.stderr
    result = cli("forget", "--yes", *here)
    assert result.exit_code == 0
    assert "no trace is left. The collector could not be asked: the broker" in result.stdout
    assert (rows(joined_state)["memo"], len(rows(joined_state)["ledger"])) == ([], 1)
    assert [line["epsilon"] for line in facts_of(cli("show", *here, "--json"))["ledger"]] == [2.0]
    nothing = cli("forget", *here, answer="y\n")
    assert nothing.stderr == (
        "error: this device has joined no campaign; nothing was sent or spent\n"
    )


def test_forget_lost_says_what_stays_charged(cli: Cli, joined_state: Path) -> None:
    here = ("--state-dir", joined_state)
    cli("report", "--value", "fuel=wood", *here, "--timeout", "0")
    assert cli("forget", "--lost", "--yes", *here).exit_code == 1
    (joined_state / "state.db").unlink()
    for verb, stream in (("status", "stderr"), ("doctor", "stdout")):
        refused = cli(verb, *here)
        assert refused.exit_code == 1
        remedy = f"allomfree-edge forget --state-dir {joined_state} --lost"
        assert remedy in getattr(refused, stream)
    result = cli("forget", "--lost", "--yes", *here)
    assert result.exit_code == 0
    assert result.stdout.endswith("Stays booked as spent: 2 on fuel.\n")


def test_doctor_finds_nothing_wrong_with_a_sound_agent(
    cli: Cli, state: Path, asked: Path, nats: Nats, config: Path
) -> None:
    config.write_text(f'state_dir = "{state}"\n[sources.fuel]\nvalue = "gas"\n')
    empty = cli("doctor", "--config", config)
    assert f"FAIL  campaigns: none joined; see allomfree-edge join --config {config}" in (
        empty.stdout
    )
    cli("join", "--manifest", asked, "--broker", nats.url, "--yes", "--config", config)
    result = cli("doctor", "--config", config, "--json")
    found = {finding["check"]: finding["ok"] for finding in facts_of(result)}
    assert found == dict.fromkeys(("state", "clock", "policy", "source", "broker"), True)
    assert "gas" not in result.output
    assert rows(state)["memo"] == []


@pytest.mark.parametrize(
    ("broker", "text", "findings"),
    [
        (
            NOBODY,
            "[policy]\nmax_eps_inf = 1\n[sources.fuel]\nvalue = 'marmalade'\n",
            ("ok    state", "ok    clock", "FAIL  policy", "ok    source", "FAIL  broker"),
        ),
        (NOBODY, "[sources.fuel]\nkind = 'magic'\n", ("edge.toml: sources.fuel.kind",)),
        (NOBODY, "[sources]\nfuel = 'marmalade'\n", ("sources.fuel must be a table",)),
        (NOBODY, "password_file = '/no/such/file'\n", ("FAIL  state: the password file",)),
        ("mqtt://192.0.2.1", "", ("FAIL  broker: mqtt://192.0.2.1:1883 is not encrypted",)),
    ],
)
def test_doctor_names_everything_that_is_wrong(
    cli: Cli, state: Path, asked: Path, config: Path, broker: str, text: str, findings: list[str]
) -> None:
    words = ("--broker", broker, "--allow-plaintext", "--yes", "--state-dir", state)
    assert cli("join", "--manifest", asked, *words).exit_code == 0
    config.write_text(f'state_dir = "{state}"\n{text}')
    result = cli("doctor", "--config", config)
    assert result.exit_code == 1
    for finding in findings:
        assert finding in result.stdout
    assert "marmalade" not in result.output


def test_commands_work_next_to_a_running_agent(cli: Cli, joined_state: Path) -> None:
    """What only reads or decides needs no lock; what draws or wipes does."""
    with Store(joined_state, exclusive=True):
        for verb in ("show", "status", "pause", "resume"):
            assert cli(verb, "--state-dir", joined_state).exit_code == 0
        for words in (("report",), ("run",), ("forget", "--yes")):
            result = cli(*words, "--state-dir", joined_state)
            assert result.exit_code == 1
            assert "another agent" in result.stderr


# --- mistakes -------------------------------------------------------------------------------------


ADDRESS = "allomfree/home-heat-1a2b3c4d"
EXAMPLE = "write it like mqtts://broker.example/"
NOTHING = "Nothing was drawn, sent or spent"


def assert_one_clear_line(result: Result, code: int, *parts: str) -> None:
    """One line of its own on standard error; log lines, if any, are JSON."""
    errors = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    logs = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert len(errors) == 1, result.stderr
    assert errors[0].startswith("error: ")
    assert "Traceback" not in result.output
    for part in parts:
        assert part in errors[0], errors[0]
    assert all(log["level"] == "warning" for log in logs)
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["join"], 2, ["which campaign? Give the invitation file, or the campaign's address"]),
        (["join", "--manifest", "x.toml"], 2, ["--broker"]),
        (["join", f"mqtt://localhost/{ADDRESS}", "--manifest", "x", "--broker", NOBODY], 2, []),
        (["join", f"http://b.example/{ADDRESS}"], 2, [EXAMPLE]),
        (["join", "b.example"], 2, [EXAMPLE]),
        (["join", "kitchen.invitaton"], 2, ["there is no file 'kitchen.invitaton'", EXAMPLE]),
        (["join", "."], 2, ["there is no file '.'", "Nothing was drawn or sent"]),
        (["join", "mqtts://b.example/home"], 2, [EXAMPLE]),
        (["join", "mqtt://x:y"], 2, [EXAMPLE]),
        (["join", f"mqtts://broker..example/{ADDRESS}"], 1, ["broker..example", NOTHING]),
        (["join", f"mqtt://192.0.2.1/{ADDRESS}"], 2, ["nothing was sent", "--allow-plaintext"]),
        (["join", f"{NOBODY}/{ADDRESS}"], 1, [NOBODY, "refused", NOTHING]),
        (["show", "--language", "it"], 2, ["--language = 'it': must be one of en, de, fr"]),
        (["report", "--password-file", "/gone"], 2, ["gone cannot be read: No such file"]),
        (["report", "--value", "marmalade"], 2, ["write ATTRIBUTE=VALUE", "nothing was drawn"]),
        (["report"], 1, ["no campaign is joined; nothing was drawn or sent. See: allomfree-edge"]),
        (["pause", "heat"], 1, ["this device has joined no campaign"]),
    ],
)
def test_a_wrong_word(cli: Cli, state: Path, words: list[str], code: int, parts: list[str]) -> None:
    result = cli(*words, "--state-dir", state)
    assert_one_clear_line(result, code, *parts)
    assert "marmalade" not in result.output


def test_a_bad_manifest_lists_all_that_is_wrong(join: Cli, asked: Path) -> None:
    """R11: also a budget that a protocol cannot reach, with what it can reach."""
    asked.write_text(manifest_text(eps_1=-1.0, count=0), encoding="utf-8")
    result = join("--yes")
    assert result.exit_code == 2
    first, *problems = result.stderr.splitlines()
    assert "is not a valid manifest; nothing was sent." in first
    named = {problem.partition("asked.toml: ")[2].split(" ")[0] for problem in problems}
    assert named == {"eps_1", "rounds.count"}
    table = FUEL.replace("values", 'protocol = "L-SOUE"\nvalues')
    asked.write_text(manifest_text(eps_1=1.9, attributes=table), encoding="utf-8")
    result = join("--yes")
    assert result.exit_code == 2
    assert 'attributes[0].protocol = "L-SOUE"' in result.stderr
    assert "at most eps_1 = 1.31" in result.stderr


def test_reporting_while_the_broker_is_away(cli: Cli, joined_state: Path) -> None:
    here = ("--state-dir", joined_state)
    result = cli("report", "--value", "fuel=wood", *here, "--timeout", "0.1")
    again = "Try again with: allomfree-edge report --state-dir"
    assert_one_clear_line(result, 1, "stored but not sent", NOBODY, again)
    (status,) = facts_of(cli("status", *here, "--json"))["campaigns"]
    assert (status["queued"], status["reports"], status["epsilon_charged"]) == (1, 1, 2.0)


@pytest.mark.parametrize("name", ["", "highwater", "lock", "state.db"])
def test_a_state_directory_that_cannot_be_used(cli: Cli, joined_state: Path, name: str) -> None:
    """A directory in the place of one of its files, or a file in its own."""
    if name:
        (joined_state / name).unlink(missing_ok=True)
        (joined_state / name).mkdir(mode=0o700)
    place = joined_state if name else joined_state / "state.db"
    result = cli("report", "--state-dir", place)
    assert_one_clear_line(result, 1, str(joined_state), "drawn or sent")


def test_a_clock_before_the_campaign_was_made(
    cli: Cli, asked: Path, join: Cli, state: Path
) -> None:
    """For this device it is 1970. Without `created` nothing speaks against the clock."""
    soon = int(time.time()) + 10_000_000
    here = ("--state-dir", state)
    text = manifest_text(first=soon)
    asked.write_text(text, encoding="utf-8")
    assert "The first round begins at 2" in join("--yes").stderr
    early = cli("report", "--value", "fuel=wood", *here)
    assert (early.exit_code, early.stderr) == (0, "")
    assert "the first round has not begun; it begins at 2" in early.stdout
    assert "FAIL  clock" not in cli("doctor", *here).stdout
    cli("leave", *here)
    asked.write_text(f"created = {soon - 1}\n{text}", encoding="utf-8")
    assert join("--yes").exit_code == 0
    result = cli("report", "--value", "fuel=wood", *here)
    parts = ("the clock is before the campaign's creation", "nothing was drawn or sent", "Set the")
    assert_one_clear_line(result, 1, *parts)
    assert rows(state)["memo"] == []
    assert "FAIL  clock" in cli("doctor", *here).stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("fule=gas", 'fule is not a question of a joined campaign; did you mean "fuel"?'),
        ("fule=nonsense", 'fule is not a question of a joined campaign; did you mean "fuel"?'),
        ("weather=gas", "weather is not a question of a joined campaign; those are: fuel, room."),
    ],
)
def test_a_misspelt_question_is_refused_before_anything_is_drawn(
    cli: Cli, asked: Path, join: Cli, state: Path, given: str, message: str
) -> None:
    """Taken as a missing value, the device would have answered "other" for life."""
    asked.write_text(manifest_text(attributes=FUEL + ROOM), encoding="utf-8")
    assert join("--yes").exit_code == 0
    report = ("report", "--value", "room=21", "--state-dir", state, "--timeout", "0.1", "--value")
    done = cli(*report, given)
    assert done.exit_code == 2
    assert (done.stdout, done.stderr) == (
        "",
        f"error: --value: {message} Nothing was drawn or sent\n",
    )
    assert rows(state)["memo"] == rows(state)["outbox"] == rows(state)["ledger"] == []
    assert "stored but not sent" in cli(*report, "fuel=gas").stderr, "whichever was drawn"
    assert len(rows(state)["memo"]) == 1


def test_half_of_a_pair_is_refused_before_anything_is_drawn(
    cli: Cli, asked: Path, join: Cli, state: Path
) -> None:
    pair = manifest_text(attributes=FUEL + ROOM, cross=("fuel", "room"))
    asked.write_text(pair, encoding="utf-8")
    assert join("--yes").exit_code == 0
    report = ("report", "--value", "room=21", "--state-dir", state, "--timeout", "0.1")
    parts = ("fuel and room are asked for together", "Nothing was drawn or sent", "--value fuel=")
    assert_one_clear_line(cli(*report), 2, *parts)
    assert rows(state)["memo"] == rows(state)["outbox"] == rows(state)["ledger"] == []
    assert "stored but not sent" in cli(*report, "--value", "fuel=gas").stderr
    assert len(rows(state)["memo"]) == 1


def test_declining_what_is_joined_already_says_that_the_device_stays(
    cli: Cli, asked: Path, join: Cli, joined_state: Path
) -> None:
    name = Manifest.from_file(asked).campaign
    done = join(answer="n\n")
    assert done.exit_code == 3
    assert f"This device has already joined {name} and stays in it; nothing was" in done.stderr
    assert f"allomfree-edge leave {name} --state-dir {joined_state}" in done.stderr
    cli("leave", "--state-dir", joined_state)
    assert "Not joined" in join(answer="n\n").stderr


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("min_period = '2h'", "min_period = 3600"),
        ("max_eps_inf = 1.5", "max_eps_inf = 2.0"),
        ("campaigns = ['a*']", 'campaigns = ["a*", "{name}"]'),
        ("sources = ['x']", 'sources = ["x", "fuel"]'),
        ("lifetime_budget = 1", "lifetime_budget = 2.0"),
        ("total_budget = 1", "total_budget = 2.0"),
    ],
)
def test_a_refusal_shows_the_line_that_would_allow_it(
    join: Cli, asked: Path, state: Path, config: Path, policy: str, line: str
) -> None:
    """A preview shows the campaign all the same."""
    config.write_text(f"[policy]\n{policy}\n")
    refused = join("--config", config, "--yes")
    line = line.format(name=Manifest.from_file(asked).campaign)
    change = f"change policy.{line.partition(' ')[0]} in {config}: {line}, below [policy]"
    assert refused.exit_code == 3
    assert refused.stderr.endswith(f"If you agree to it, {change}\n")
    preview = join("--config", config, "--preview")
    assert (preview.exit_code, preview.stderr) == (3, refused.stderr)
    assert "What heats your home?" in preview.stdout
    assert rows(state)["campaign"] == []
    config.write_text(f"[policy]\n{line}\n")
    assert join("--config", config, "--yes").exit_code == 0


# --- for programs: `EdgeClient` -------------------------------------------------------------------


@pytest.fixture
def campaign(asked: Path) -> Manifest:
    return Manifest.from_file(asked)


def test_the_public_names() -> None:
    names = "Credentials EdgeClient EdgeError Invitation Policy ReportState Reported"
    assert edge_client.__all__ == names.split()
    assert issubclass(EdgeError, AllomfreeError)


def test_every_mistake_in_a_setting_is_an_edge_error(tmp_path: Path, config: Path) -> None:
    """Also those that code shared with the collector finds."""
    config.write_text("no_setting = 1\n")
    missing = Credentials("me", "secret", ca_file=str(tmp_path / "none.pem"))
    with EdgeClient(tmp_path / "state", credentials=missing) as client:
        for mistake in (
            lambda: resolve({}, config=config),
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


def test_the_example_of_the_module_is_true(state: Path, nats: Nats) -> None:
    """As the docstring has it, with the broker's address and the directory replaced."""
    campaign = manifest(slug=f"api-{os.urandom(4).hex()}")
    assert edge_client.client.__doc__ is not None
    example = edge_client.client.__doc__.split("\n\n", 1)[1]
    example = example.replace("/var/lib/heater/allomfree", str(state))
    address = f"{nats.url}/allomfree/{campaign.campaign}"
    example = example.replace("mqtts://broker.example/allomfree/home-heat-1a2b3c4d", address)
    with Tally(nats.port, campaign) as tally:
        exec(example, {})  # noqa: S102
        tally.wait_for(1)


def test_what_is_stored_is_sent_even_if_nothing_new_can_be_drawn(
    state: Path, campaign: Manifest
) -> None:
    broker = MemoryBroker()
    tally = MemoryTally(broker, campaign)
    stove = manifest(slug="stove", attributes=FUEL.replace("fuel", "stove"))
    with EdgeClient(state, make_link=broker.link, timing=QUICK) as client:
        for one in (campaign, stove):
            client.join(client.invitation(manifest=one, broker=NOBODY))
        first = client.agent.draw(client.find(campaign.campaign), lambda _: "wood")
        client.agent.policy = Policy(lifetime_budget=1.0)
        with pytest.raises(PolicyRefusal, match="stove"):
            client.report({"fuel": "wood"}, timeout=20.0)
    assert [payload for _, payload in tally.deliveries] == [getattr(first, "payload", None)]


@pytest.mark.parametrize(
    ("away", "seconds", "state_of_report", "text"),
    [
        ("broker", 0.1, ReportState.QUEUED, f"queued: the broker {NOBODY} cannot be used"),
        ("nothing", 0.0, ReportState.QUEUED, "queued: there was no time to send it"),
        ("collector", 0.5, ReportState.SENT, "sent, no receipt yet"),
    ],
)
def test_what_became_of_a_report(
    state: Path, campaign: Manifest, away: str, seconds: float, state_of_report: str, text: str
) -> None:
    """A missing value is reported like any other (P1)."""
    broker = MemoryBroker()
    if away == "broker":
        broker.stop()
    with EdgeClient(state, make_link=broker.link, timing=QUICK) as client:
        client.join(client.invitation(manifest=campaign, broker=NOBODY))
        (reported,) = client.report({"stove": "wood"}, timeout=seconds)
        assert (reported.round, reported.state) == (0, state_of_report)
        assert reported.text.startswith(text)
        assert client.store.reports(campaign.campaign)[0].fate == "queued"


def test_trouble_with_one_broker_is_not_blamed_on_another(state: Path, campaign: Manifest) -> None:
    other = manifest(slug="other")
    servers = {1: MemoryBroker(), 2: MemoryBroker()}
    MemoryTally(servers[1], campaign)
    servers[2].stop()
    with EdgeClient(state, make_link=by_port(servers), timing=QUICK) as client:
        for port, one in ((1, campaign), (2, other)):
            client.join(client.invitation(manifest=one, broker=f"mqtt://localhost:{port}"))
        texts = {r.campaign: r.text for r in client.report({"fuel": "wood"}, timeout=0.5)}
    assert texts[campaign.campaign] == "counted"
    assert texts[other.campaign].startswith("queued: the broker mqtt://localhost:2 cannot")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (ResponseStatus.DONE, "withdrew this device's reports from 3 unsealed rounds"),
        (ResponseStatus.REFUSED, "refused; reports of rounds not yet sealed may still be counted"),
        (None, "did not answer; reports of rounds not yet sealed may still be counted"),
    ],
)
def test_forget_asks_the_collector_and_wipes_here(
    state: Path, campaign: Manifest, status: ResponseStatus | None, text: str
) -> None:
    broker, topics = MemoryBroker(), Topics(campaign.campaign)

    def answer(message: Message) -> None:
        request = decode_request(message.payload)
        assert isinstance(request, Request)
        device = str(message.topic).split("/")[4]
        for nonce, rounds in ((bytes(8), 9), (request.nonce, 3)):  # first somebody else's
            if status is not None:
                response = Response(request.digest8, RequestKind.FORGET, nonce, status, rounds)
                broker.publish(topics.response(device), response.encode())

    broker.listen(topics.all_requests, answer)
    with EdgeClient(state, make_link=broker.link) as client:
        client.join(client.invitation(manifest=campaign, broker=NOBODY))
        client.agent.draw(client.find(), lambda _: "wood")
        assert client.forget(timeout=0.3) == (campaign.campaign, text)
        assert client.memberships() == []
        assert client.store.charged("fuel") == campaign.eps_inf


def test_forget_sends_no_password_in_plain_text(state: Path, campaign: Manifest) -> None:
    """Joined when plain text was allowed, forgotten when it no longer is."""
    with EdgeClient(state, allow_plaintext=True) as client:
        client.join(client.invitation(manifest=campaign, broker="mqtt://192.0.2.1"))
    with EdgeClient(state, credentials=Credentials("me", "hunter2")) as client:
        _, answer = client.forget(timeout=0.3)
        assert answer.startswith("could not be asked: mqtt://192.0.2.1:1883 is not encrypted")
        assert client.memberships() == []
