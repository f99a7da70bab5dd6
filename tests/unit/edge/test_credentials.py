"""Who sees a device's credentials (P2), and TLS that always verifies (R18)."""

from __future__ import annotations

import ast
import json
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient
from edge_client.credentials import Remembered, RememberedCredentials
from edge_client.link import Connector, Link
from protocol_spec.programs.invitation import DeviceInvitation, read_invitation
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
from tests.support.edge import NOBODY
from tests.support.harness import ROOT

SECRET = "correct-horse"  # noqa: S105 - of brokers that are not there


# --- addresses and TLS ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "broker", "text"),
    [
        ("mqtt://localhost", BrokerUrl(False, "localhost", 1883), "mqtt://localhost:1883"),
        ("mqtts://B.Example:99", BrokerUrl(True, "b.example", 99), "mqtts://b.example:99"),
        ("mqtt://[::1]:5", BrokerUrl(False, "::1", 5), "mqtt://[::1]:5"),
        ("MQTTS://b.example/", BrokerUrl(True, "b.example", 8883), "mqtts://b.example:8883"),
    ],
)
def test_a_brokers_address(url: str, broker: BrokerUrl, text: str) -> None:
    assert parse_broker(url) == parse_broker(text) == broker
    assert str(broker) == text


@pytest.mark.parametrize(
    "url",
    [
        *("mqtts://me:hunter2@b.example", "mqtts://hunter2@b.example", "mqtts://me:hunter2@"),
        *("http://me:hunter2@b.example", "mqtts://me:hunter2@b.example:70000"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="--password-file") as refused:
        parse_broker(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *((host, True) for host in ("localhost", "127.0.0.1", "127.8.9.1", "[::1]")),
        *((host, False) for host in ("b.example", "192.168.1.2", "0.0.0.0", "[fe80::1]")),  # noqa: S104
        ("localhost.example", False),
    ],
)
def test_plain_text_leaves_the_machine_only_when_asked_for(host: str, local: bool) -> None:
    """R18."""
    broker = parse_broker(f"mqtt://{host}")
    if local:
        broker.check_plaintext(allowed=False)
    else:
        with pytest.raises(SettingsError, match=r"nothing was sent.*--allow-plaintext"):
            broker.check_plaintext(allowed=False)
    broker.check_plaintext(allowed=True)
    parse_broker(f"mqtts://{host}").check_plaintext(allowed=False)


def test_tls_verifies_chain_and_name(tmp_path: Path) -> None:
    context = Credentials().tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    for file in (junk, tmp_path / "missing.pem"):
        for credentials in (Credentials(ca_file=str(file)), Credentials(cert_file=str(file))):
            with pytest.raises(SettingsError, match=r"TLS files cannot be used.*nothing was sent"):
                credentials.tls_context()


FORBIDDEN = {
    *("CERT_NONE", "CERT_OPTIONAL", "check_hostname", "verify_mode", "verify_flags", "insecure"),
    *("tls_insecure_set", "tls_set", "_create_unverified_context", "_create_default_https_context"),
    *("SSLContext", "PROTOCOL_TLS", "wrap_socket", "wrap_bio"),
}


def test_no_code_path_disables_verification() -> None:
    """R18: every name, attribute, keyword and text constant of both packages."""
    found = set()
    for path in (p for d in ("edge_client", "protocol_spec") for p in (ROOT / d).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = {str(getattr(node, field, "")) for field in ("id", "attr", "arg", "name")}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
            found |= {(str(path.relative_to(ROOT)), name) for name in names & FORBIDDEN}
    assert found == {
        ("protocol_spec/programs/settings.py", "SSLContext"),  # the one that verifies
        ("protocol_spec/programs/mqtt.py", "SSLContext"),  # an argument
        ("protocol_spec/programs/packets.py", "SSLContext"),
        ("protocol_spec/programs/packets.py", "wrap_bio"),
    }


# --- P2: credentials are shown to the broker they are for, by name, port and scheme ---------------


RIGHT, OTHER = parse_broker("mqtts://right.example"), parse_broker("mqtts://other.example")
SAME_HOST = [parse_broker(url) for url in ("mqtts://right.example:1", "mqtt://right.example")]


@pytest.fixture
def kept(tmp_path: Path) -> RememberedCredentials:
    return RememberedCredentials(tmp_path)


def shown(connector: Connector, *brokers: BrokerUrl) -> list[Credentials]:
    """What each broker would be shown."""
    seen: list[Credentials] = []

    def make(broker: BrokerUrl, credentials: Credentials, **_: object) -> Link:
        seen.append(credentials)
        return MemoryBroker().link(broker, credentials)

    connector = Connector(
        connector.credentials,
        True,
        make_link=make,
        brokers=connector.brokers,
        remembered=connector.remembered,
    )
    for broker in brokers:
        connector.link(broker)
    return seen


def test_credentials_are_shown_to_the_broker_they_are_for() -> None:
    mine = Credentials("me", "hunter2", "ca.pem", "me.pem", "me.key")
    known = [str(broker) for broker in parse_brokers("b.example, mqtt://localhost:1884")]
    connector = Connector(mine, brokers=lambda: known)
    right = ("mqtts://b.example", "mqtts://B.example:8883", "mqtt://localhost:1884")
    assert shown(connector, *map(parse_broker, right)) == [mine] * 3
    others = [
        *("mqtt://b.example:8883", "mqtts://b.example:8884", "mqtts://c.b.example", "mqtts://b"),
        *("mqtt://127.0.0.1:1884", "mqtts://b.example.", "mqtt://localhost"),
    ]
    brokers = [parse_broker(url) for url in others]
    assert set(shown(connector, *brokers)) == {Credentials(ca_file="ca.pem")}
    assert all("were not shown to it" in connector.note(broker) for broker in brokers)
    assert {connector.username(broker) for broker in brokers} == {None}


def test_without_a_named_broker_nothing_is_sent() -> None:
    connector = Connector(Credentials("me", "hunter2"))
    with pytest.raises(SettingsError, match=r'credentials_for = "mqtts://right\.exa') as refused:
        connector.check_invited(RIGHT)
    assert "hunter2" not in str(refused.value)
    Connector(Credentials(ca_file="ca.pem")).check_invited(RIGHT)


def test_remembered_credentials_are_shown_to_that_broker_and_to_no_other(
    kept: RememberedCredentials,
) -> None:
    """Not even to another port or scheme of the same machine."""
    kept.remember(RIGHT, Remembered("k7f3", SECRET, ca_file="/ca.pem"))
    connector = Connector(Credentials(), remembered=kept.of)
    right, *others = shown(connector, RIGHT, OTHER, *SAME_HOST)
    assert (right.username, right.password, right.ca_file) == ("k7f3", SECRET, "/ca.pem")
    assert others == [Credentials()] * 3
    assert [connector.username(b) for b in (RIGHT, OTHER)] == ["k7f3", None]
    assert [connector.treatment(b) for b in (RIGHT, OTHER)] == ["shown", "none"]


def test_what_is_set_for_a_broker_comes_before_what_is_remembered(
    kept: RememberedCredentials,
) -> None:
    kept.remember(RIGHT, Remembered("old", SECRET))
    kept.remember(OTHER, Remembered("theirs", SECRET))
    mine = Credentials("new", "newer")
    connector = Connector(mine, brokers=lambda: [str(RIGHT)], remembered=kept.of)
    names = [c.username for c in shown(connector, RIGHT, OTHER, *SAME_HOST)]
    assert names == ["new", "theirs", None, None]
    assert [bool(connector.note(b)) for b in (RIGHT, OTHER, SAME_HOST[0])] == [False, False, True]


def test_a_remembered_authority_alone_does_not_identify_the_device(
    kept: RememberedCredentials,
) -> None:
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
    for _ in range(2):
        kept.forget(str(RIGHT))
    assert SECRET not in kept.path.read_text()
    assert kept.brokers() == [str(OTHER)]
    assert SECRET not in repr(Remembered("k7f3", SECRET))
    kept.path.write_text(json.dumps({"brokers": {str(RIGHT): {"username": "me", "more": 1}}}))
    assert kept.of(RIGHT) == Remembered("me"), "a later version may store more"


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"brokers": 3}', '{"brokers": {"b": {"username": 3}}}']
)
def test_a_damaged_file_is_reported_and_never_used(
    kept: RememberedCredentials, damage: str
) -> None:
    kept.path.write_text(damage)
    with pytest.raises(SettingsError, match=r"it is damaged\. Nothing was drawn or sent"):
        kept.of(RIGHT)


# --- what `join` was given is remembered for `run` ------------------------------------------------


def remembered(state: Path) -> Remembered | None:
    return RememberedCredentials(state).of(parse_broker(NOBODY))


def test_join_remembers_what_was_typed_and_prints_what_to_type_next(
    cli: Cli, join: Cli, state: Path, tmp_path: Path
) -> None:
    """A file is followed by its name, so that a renewed password is used."""
    password = tmp_path / "password"
    password.write_text(SECRET)
    given = ("--username", "k7f3", "--password-file", password, "--credentials-for", NOBODY)
    for answer, code in (("n\n", 3), ("y\n", 0)):
        assert remembered(state) is None
        done = join(*given, answer=answer)
        assert done.exit_code == code
    assert done.stdout.splitlines()[-1] == f"Next: allomfree-edge run --state-dir {state}"
    assert remembered(state) == Remembered("k7f3", password_file=str(password))
    assert SECRET not in (state / "credentials.json").read_text()
    with EdgeClient(state) as client:
        (seen,) = shown(client.connector, parse_broker(NOBODY))
        assert (seen.username, seen.password) == ("k7f3", SECRET)
        assert client.find().device == "k7f3"
    assert "remembered for" in cli("doctor", "--state-dir", state).stdout


def test_what_join_remembers(
    cli: Cli, asked: Path, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('username = "me"\n')
    other = ("--username", "me", "--credentials-for", "mqtts://x.example", "--ca-file", "/ca.pem")
    for number, (given, expected) in enumerate(
        (
            # What the configuration says stays there alone, so that a change in it is followed.
            (("--config", config), None),
            (("--username", "me"), Remembered("me", SECRET)),
            (other, Remembered(ca_file="/ca.pem")),  # what is for another broker is not for this
            # R18: plain text is no credential; the risk is named wherever it is taken.
            (("--username", "me", "--allow-plaintext"), Remembered("me", SECRET)),
        )
    ):
        state = tmp_path / f"state-{number}"
        words = ("--manifest", asked, "--broker", NOBODY, "--yes", "--state-dir", state)
        done = cli("join", *words, *given)
        assert done.exit_code == 0, done.stderr
        assert remembered(state) == expected
        monkeypatch.setenv("ALLOMFREE_PASSWORD", SECRET)
        typed = done.stdout.splitlines()[-1]
        assert typed.startswith("Next: allomfree-edge run ")
        assert (f"--config {config}" in typed) is (expected is None)
        assert ("--allow-plaintext" in typed) is ("--allow-plaintext" in given)


def test_forget_forgets_them_with_the_last_campaign_there(
    cli: Cli, asked: Path, join: Cli, state: Path
) -> None:
    join("--yes", "--username", "k7f3")
    asked.write_text(manifest_text(slug="second"), encoding="utf-8")
    join("--yes")
    assert cli("forget", "second", "--yes", "--state-dir", state).exit_code == 0
    assert remembered(state) == Remembered("k7f3")
    assert cli("forget", "--yes", "--state-dir", state).exit_code == 0
    assert remembered(state) is None


# --- invitations ----------------------------------------------------------------------------------

AUTHORITY = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def invited(file: Path, **changes: Any) -> Path:
    """The file of an invitation to a broker that is not there."""
    given = {"password": SECRET, "labels": {"region": "north"}, **changes}
    brokers = (NOBODY, "mqtt://127.0.0.1:2")
    file.write_text(DeviceInvitation(brokers, "allomfree", "kitchen", **given).text())
    return file


def test_an_invitation_without_a_campaign_is_kept_for_later(
    cli: Cli, join: Cli, state: Path, tmp_path: Path
) -> None:
    """From a file, a link or standard input; its files go when the last campaign there does."""
    file = invited(tmp_path / "kitchen.invitation", certificate=AUTHORITY, key="KEY")
    made = read_invitation(file)
    for word, answer in ((file, None), (made.as_link(), None), ("-", made.text())):
        done = cli("join", word, "--state-dir", state, answer=answer)
        assert done.exit_code == 0, done.stderr
        assert f"This device is kitchen at {NOBODY}" in done.stdout
    kept = remembered(state)
    assert kept is not None
    assert (kept.username, kept.password, kept.labels) == ("kitchen", SECRET, {"region": "north"})
    assert kept.key_file
    assert Path(kept.key_file).read_text() == "KEY"
    assert Path(kept.key_file).is_relative_to(state)
    assert join("--yes").exit_code == 0
    for words in (("show",), ("show", "--html", "-")):
        assert "region = north" in cli(*words, "--state-dir", state).stdout
    assert cli("forget", "--yes", "--state-dir", state).exit_code == 0
    assert RememberedCredentials(state).brokers() == []
    assert not any(SECRET in each.read_text() for each in state.glob("*.json"))
    assert not Path(kept.key_file).exists()


def test_an_invitation_that_cannot_be_used(
    cli: Cli, join: Cli, state: Path, tmp_path: Path
) -> None:
    """Each says what is wrong and what to do, and nothing is kept."""
    expired = invited(tmp_path / "expired.invitation", exchange=True, expires=1_700_000_000)
    damaged = tmp_path / "damaged.invitation"
    damaged.write_text(expired.read_text()[:200])
    foreign = tmp_path / "heat.toml"
    foreign.write_text(manifest_text())
    later = "Ask whoever invited you for a new"
    for file, message, remedy in (
        (expired, "the invitation expired at 2023-11-14T22:13:20Z", "ask whoever invited you"),
        (damaged, "is damaged or incomplete: copy it again", later),
        (foreign, "is not an invitation", "NAME.invitation that `allomfree-collector enrol`"),
        (tmp_path / "none.invitation", "No such file or directory", "Nothing was drawn or sent"),
    ):
        failed = cli("join", file, "--yes", "--state-dir", state)
        assert failed.exit_code == 2
        assert message in failed.stderr
        assert remedy in failed.stderr
        assert not (state / "credentials.json").exists()


def test_an_invitation_for_another_device(cli: Cli, join: Cli, state: Path, tmp_path: Path) -> None:
    """A device has one name at a broker: under a second one it could be counted twice."""
    assert join("--yes", "--username", "garden").exit_code == 0
    failed = cli("join", invited(tmp_path / "kitchen.invitation"), "--state-dir", state)
    assert failed.exit_code == 2
    assert "as garden, and the invitation is for kitchen" in failed.stderr
    assert remembered(state) == Remembered("garden")
