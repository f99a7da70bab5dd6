"""R18's unit part: addresses, plain text only to this machine, and TLS that always verifies."""

from __future__ import annotations

import ast
import json
import ssl
import stat
from functools import cache
from pathlib import Path

import pytest

import edge_client
from edge_client import EdgeClient
from edge_client.credentials import Remembered, RememberedCredentials
from edge_client.errors import StorageFailure
from edge_client.link import Connector, Link
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import (
    BrokerUrl,
    Credentials,
    SettingsError,
    parse_broker,
    parse_brokers,
)
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge import FUEL, NOBODY

ROOT = Path(edge_client.__file__).parents[1]
FOLDERS = ("edge_client", "protocol_spec")


@pytest.mark.parametrize(
    ("url", "broker", "text"),
    [
        ("mqtt://localhost", BrokerUrl(False, "localhost", 1883), "mqtt://localhost:1883"),
        ("mqtts://b.example", BrokerUrl(True, "b.example", 8883), "mqtts://b.example:8883"),
        ("mqtts://B.Example:99", BrokerUrl(True, "b.example", 99), "mqtts://b.example:99"),
        ("mqtt://[::1]:5", BrokerUrl(False, "::1", 5), "mqtt://[::1]:5"),
        ("MQTTS://b.example/", BrokerUrl(True, "b.example", 8883), "mqtts://b.example:8883"),
    ],
)
def test_a_brokers_address(url: str, broker: BrokerUrl, text: str) -> None:
    assert parse_broker(url) == broker
    assert str(broker) == text
    assert parse_broker(text) == broker


@pytest.mark.parametrize(
    "url",
    [
        "",
        "b.example",
        "http://b.example",
        "mqtt:b.example",
        "mqtt://",
        "mqtt://:1883",
        "mqtt://b.example:port",
        "mqtt://b.example:70000",
        "mqtts://b.example?x=1",
        "mqtts://b.example#x",
        "mqtts://[::1",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(SettingsError, match=r"write it like mqtts://broker\.example/"):
        parse_broker(url)


@pytest.mark.parametrize(
    "url",
    [
        "mqtts://me:hunter2@b.example",
        "mqtts://hunter2@b.example",
        "http://me:hunter2@b.example",
        "mqtts://me:hunter2@b.example:70000",
        "mqtts://me:hunter2@",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="--password-file") as refused:
        parse_broker(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "[::1]"])
def test_plain_text_to_this_machine_is_accepted(host: str) -> None:
    parse_broker(f"mqtt://{host}").check_plaintext(allowed=False)


@pytest.mark.parametrize(
    "host",
    ["b.example", "192.168.1.2", "10.0.0.1", "0.0.0.0", "[fe80::1]", "localhost.example"],  # noqa: S104
)
def test_plain_text_to_any_other_machine_must_be_asked_for(host: str) -> None:
    broker = parse_broker(f"mqtt://{host}")
    with pytest.raises(SettingsError, match=r"nothing was sent.*--allow-plaintext"):
        broker.check_plaintext(allowed=False)
    broker.check_plaintext(allowed=True)
    parse_broker(f"mqtts://{host}").check_plaintext(allowed=False)


def test_tls_verifies_chain_and_name() -> None:
    context = Credentials().tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("missing", ["ca_file", "cert_file"])
def test_tls_files_that_cannot_be_used_are_an_error(tmp_path: Path, missing: str) -> None:
    junk = tmp_path / "junk.pem"
    for content in (None, "no certificate"):
        if content:
            junk.write_text(content)
        with pytest.raises(SettingsError, match=r"TLS files cannot be used.*nothing was sent"):
            Credentials(**{missing: str(junk)}).tls_context()


@cache
def trees() -> dict[str, ast.Module]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in files}


def names(tree: ast.AST) -> set[str]:
    """Every name, attribute, keyword and text constant of a module."""
    found = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            found.add(str(getattr(node, field, "")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_no_code_path_disables_verification() -> None:
    forbidden = {
        "CERT_NONE",
        "CERT_OPTIONAL",
        "check_hostname",
        "verify_mode",
        "verify_flags",
        "tls_insecure_set",
        "tls_set",
        "_create_unverified_context",
        "_create_default_https_context",
        "SSLContext",
        "PROTOCOL_TLS",
        "insecure",
        "wrap_socket",
        "wrap_bio",
    }
    allowed = {
        ("protocol_spec/programs/settings.py", "SSLContext"),  # what the one that verifies returns
        ("protocol_spec/programs/mqtt.py", "SSLContext"),  # what it is given
        ("protocol_spec/programs/packets.py", "SSLContext"),
        ("protocol_spec/programs/packets.py", "wrap_bio"),
    }
    found = {(module, name) for module, tree in trees().items() for name in names(tree) & forbidden}
    assert found == allowed


def test_a_link_in_plain_text_is_not_made() -> None:
    made: list[BrokerUrl] = []

    def make(broker: BrokerUrl, credentials: Credentials, **options: object) -> Link:
        made.append(broker)
        return MemoryBroker().link(broker, credentials)

    elsewhere = parse_broker("mqtt://192.0.2.1")
    with pytest.raises(SettingsError, match="nothing was sent"):
        Connector(Credentials(), make_link=make).link(elsewhere)
    assert made == []
    Connector(Credentials(), allow_plaintext=True, make_link=make).link(elsewhere)
    assert made == [elsewhere]


def test_credentials_are_shown_to_the_broker_they_are_for() -> None:
    """P2: by name, port and scheme; to all others nothing that tells who we are."""
    shown: list[Credentials] = []

    def make(broker: BrokerUrl, credentials: Credentials, **options: object) -> Link:
        shown.append(credentials)
        return MemoryBroker().link(broker, credentials)

    mine = Credentials("me", "hunter2", "ca.pem", "me.pem", "me.key")
    known = [str(broker) for broker in parse_brokers("b.example, mqtt://localhost:1884")]
    connector = Connector(mine, True, make_link=make, brokers=lambda: known)
    for url in ("mqtts://b.example", "mqtts://B.example:8883", "mqtt://localhost:1884"):
        connector.link(parse_broker(url))
    assert shown == [mine] * 3
    shown.clear()
    others = "mqtt://b.example:8883", "mqtts://b.example:8884", "mqtts://c.b.example", "mqtts://b"
    for url in (*others, "mqtt://127.0.0.1:1884", "mqtts://b.example.", "mqtt://localhost"):
        connector.link(parse_broker(url))
        assert "were not shown to it" in connector.note(parse_broker(url))
        assert connector.username(parse_broker(url)) is None
    assert set(shown) == {Credentials(ca_file="ca.pem")}


def test_nobody_has_said_which_broker_they_are_for() -> None:
    broker = parse_broker("mqtts://b.example")
    connector = Connector(Credentials("me", "hunter2"))
    with pytest.raises(SettingsError, match=r'credentials_for = "mqtts://b\.example:8883"') as told:
        connector.check_invited(broker)
    assert "hunter2" not in str(told.value)
    Connector(Credentials(ca_file="ca.pem")).check_invited(broker)


# --- What `join` was given is remembered for `run`: privately, and for one broker alone (P2).


RIGHT, OTHER = parse_broker("mqtts://right.example"), parse_broker("mqtts://other.example")
SAME_HOST = [parse_broker(f"{url}") for url in ("mqtts://right.example:1", "mqtt://right.example")]
SECRET = "correct-horse"  # noqa: S105 - of brokers that are not there


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
    path.write_text(manifest_text(attributes=FUEL, first=None), encoding="utf-8")
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
    text = manifest_text(attributes=FUEL, first=None, slug="second")
    second.write_text(text, encoding="utf-8")
    joining(cli, second, state)
    assert cli("forget", "second", "--yes", "--state-dir", state).exit_code == 0
    assert remembered(state) == Remembered("k7f3")
    assert cli("forget", "--yes", "--state-dir", state).exit_code == 0
    assert remembered(state) is None
