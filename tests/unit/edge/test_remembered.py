"""What `join` was given is remembered for `run`: privately, and for one broker alone (P2)."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from edge_client import Credentials, EdgeClient
from edge_client.credentials import Remembered, RememberedCredentials
from edge_client.errors import SettingsError, StorageFailure
from edge_client.link import Connector
from protocol_spec.programs.settings import parse_broker
from tests.support.command_line import Cli
from tests.support.edge import FUELS, NOBODY, way_text

RIGHT, OTHER = parse_broker("mqtts://right.example"), parse_broker("mqtts://other.example")
SAME_HOST = [parse_broker(f"{url}") for url in ("mqtts://right.example:1", "mqtt://right.example")]
SECRET = "correct-horse"  # noqa: S105 - of brokers that are not there
CONFIG = {"username": "k7f3", "password_file": "password", "ca_file": "ca.pem"}


@pytest.fixture
def kept(tmp_path: Path) -> RememberedCredentials:
    return RememberedCredentials(tmp_path)


def shown(connector: Connector, *brokers: object) -> list[Credentials]:
    """What each broker would be shown."""
    seen: list[Credentials] = []

    def make_link(_broker: object, credentials: Credentials, **_: object) -> object:
        seen.append(credentials)
        return None

    spying = Connector(
        connector.credentials,
        True,
        make_link=make_link,  # type: ignore[arg-type]
        brokers=connector.brokers,
        remembered=connector.remembered,
    )
    for broker in brokers:
        spying.link(broker)  # type: ignore[arg-type]
    return seen


def test_they_are_shown_to_that_broker_and_to_no_other(kept: RememberedCredentials) -> None:
    """Not even to another port or scheme of the same machine."""
    kept.remember(RIGHT, Remembered("k7f3", SECRET, ca_file="/ca.pem"))
    connector = Connector(Credentials(), remembered=kept.of)
    right, *others = shown(connector, RIGHT, OTHER, *SAME_HOST)
    assert (right.username, right.password, right.ca_file) == ("k7f3", SECRET, "/ca.pem")
    assert others == [Credentials()] * 3
    assert [connector.username(b) for b in (RIGHT, OTHER)] == ["k7f3", None]
    assert [connector.treatment(b) for b in (RIGHT, OTHER)] == ["shown", "none"]


def test_what_is_set_for_a_broker_comes_first(kept: RememberedCredentials) -> None:
    kept.remember(RIGHT, Remembered("old", SECRET))
    kept.remember(OTHER, Remembered("theirs", SECRET))
    mine = Credentials("new", "newer")
    connector = Connector(mine, brokers=lambda: [str(RIGHT)], remembered=kept.of)
    assert [c.username for c in shown(connector, RIGHT, OTHER, *SAME_HOST)] == [
        *("new", "theirs", None, None)
    ]
    assert [bool(connector.note(b)) for b in (RIGHT, OTHER, SAME_HOST[0])] == [False, False, True]


def test_an_authority_alone_tells_nobody_who_we_are(kept: RememberedCredentials) -> None:
    kept.remember(RIGHT, Remembered(ca_file="/ca.pem"))
    connector = Connector(Credentials("me", SECRET), remembered=kept.of)
    assert shown(connector, RIGHT) == [Credentials(ca_file="/ca.pem")]
    with pytest.raises(SettingsError, match=r"--credentials-for mqtts://right\.example:8883"):
        connector.check_invited(RIGHT)


def test_the_file_is_private_and_whole(kept: RememberedCredentials) -> None:
    kept.remember(RIGHT, Remembered("k7f3", SECRET))
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    kept.remember(OTHER, Remembered("other"))
    assert kept.brokers() == [str(OTHER), str(RIGHT)]
    kept.forget(str(RIGHT))
    kept.forget(str(RIGHT))
    assert SECRET not in kept.path.read_text()
    assert kept.brokers() == [str(OTHER)]
    assert SECRET not in repr(Remembered("k7f3", SECRET))


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"brokers": 3}', '{"brokers": {"b": {"username": 3}}}']
)
def test_a_damaged_file_is_told_and_never_used(kept: RememberedCredentials, damage: str) -> None:
    kept.path.write_text(damage)
    with pytest.raises(SettingsError, match=r"it is damaged\. Nothing was drawn or sent"):
        kept.of(RIGHT)


def test_a_later_version_may_say_more(kept: RememberedCredentials) -> None:
    kept.path.write_text(json.dumps({"brokers": {str(RIGHT): {"username": "me", "more": 1}}}))
    assert kept.of(RIGHT) == Remembered("me")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure, match="cannot be remembered"):
        RememberedCredentials(tmp_path / "no").remember(RIGHT, Remembered("me"))


# --- by the commands ------------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "asked.toml"
    path.write_text(way_text("memoized", attributes=FUELS, first=None), encoding="utf-8")
    (tmp_path / "password").write_text(SECRET)
    return path


def joining(cli: Cli, asked: Path, state: Path, *words: object) -> str:
    joined = ("join", "--manifest", asked, "--broker", NOBODY, "--yes", "--state-dir", state)
    done = cli(*joined, *words)
    assert done.exit_code == 0, done.stderr
    return str(done.stdout.splitlines()[-1])


def remembered(state: Path) -> Remembered | None:
    return RememberedCredentials(state).of(parse_broker(NOBODY))


def test_join_remembers_what_was_typed_and_says_what_to_paste(
    cli: Cli, asked: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("--username", "k7f3", "--password-file", "password", "--credentials-for", NOBODY)
    assert joining(cli, asked, state, *given) == f"Next: allomfree-edge run --state-dir {state}"
    assert remembered(state) == Remembered("k7f3", password_file=str(tmp_path / "password"))
    assert SECRET not in (state / "credentials.json").read_text(), "a file is followed by its name"
    with EdgeClient(state) as client:
        (seen,) = shown(client.connector, parse_broker(NOBODY))
        assert (seen.username, seen.password) == ("k7f3", SECRET)
        assert client.find().device == "k7f3"
    assert "remembered for" in cli("doctor", "--state-dir", state).stdout


def test_a_password_of_the_environment_is_remembered_itself(
    cli: Cli, asked: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOMFREE_PASSWORD", SECRET)
    joining(cli, asked, state, "--username", "k7f3")
    assert remembered(state) == Remembered("k7f3", SECRET)


def test_what_the_configuration_says_is_not_remembered(
    cli: Cli, asked: Path, state: Path, tmp_path: Path
) -> None:
    """One place only: else a password that is changed there would not be followed."""
    config = tmp_path / "edge.toml"
    config.write_text(f'username = "k7f3"\npassword_file = "{tmp_path}/password"\n')
    said = joining(cli, asked, state, "--config", config)
    assert said == f"Next: allomfree-edge run --config {config} --state-dir {state}"
    assert remembered(state) is None
    assert not (state / "credentials.json").exists()


def test_credentials_for_another_broker_are_not_remembered_for_this_one(
    cli: Cli, asked: Path, state: Path
) -> None:
    given = ("--username", "k7f3", "--credentials-for", "mqtts://elsewhere.example")
    joining(cli, asked, state, *given, "--ca-file", "/ca.pem")
    assert remembered(state) == Remembered(ca_file="/ca.pem")


def test_plain_text_is_asked_for_each_time(cli: Cli, asked: Path, state: Path) -> None:
    """It is no credential: the risk is named wherever it is taken (R18)."""
    said = joining(cli, asked, state, "--allow-plaintext", "--username", "k7f3")
    assert said == f"Next: allomfree-edge run --state-dir {state} --allow-plaintext"
    assert remembered(state) == Remembered("k7f3")


def test_who_does_not_agree_leaves_nothing(cli: Cli, asked: Path, state: Path) -> None:
    words = ("--manifest", asked, "--broker", NOBODY, "--state-dir", state, "--username", "k7f3")
    assert cli("join", *words, answer="n\n").exit_code == 3
    assert cli("join", *words, "--preview").exit_code == 0
    assert remembered(state) is None


def test_forget_forgets_them_with_the_last_campaign_there(
    cli: Cli, asked: Path, state: Path, tmp_path: Path
) -> None:
    joining(cli, asked, state, "--username", "k7f3")
    second = tmp_path / "second.toml"
    text = way_text("memoized", attributes=FUELS, first=None, slug="second")
    second.write_text(text, encoding="utf-8")
    joining(cli, second, state)
    assert cli("forget", "second", "--yes", "--state-dir", state).exit_code == 0
    assert remembered(state) == Remembered("k7f3")
    assert cli("forget", "--yes", "--state-dir", state).exit_code == 0
    assert remembered(state) is None
