"""Settings: flags before variables before the file before defaults, and errors that say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collector.settings import PAGE, SETTINGS, Address, Settings, resolve
from protocol_spec.programs.settings import SettingsError

FILE = 'broker = "mqtts://file.example"\nkeepalive = 11\nlisten = "127.0.0.1:9180"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "collector.toml"
    path.write_text(FILE)
    return path


def settings(
    config: Path | None = None, environ: dict[str, str] | None = None, **flags: Any
) -> Settings:
    return resolve(flags, config=config, environ={"HOME": "/nowhere", **(environ or {})})


def test_flags_come_before_variables_before_the_file_before_defaults(config: Path) -> None:
    variable = {"ALLOMFREE_KEEPALIVE": "22"}
    assert settings(config, variable, keepalive="33").keepalive == 33
    assert settings(config, variable).keepalive == 22
    assert settings(config).keepalive == 11
    assert settings(Path("/dev/null")).keepalive == 60


def test_defaults_are_safe() -> None:
    made = settings(Path("/dev/null"))
    assert (made.namespace, made.client_id) == ("allomfree", None)
    assert (made.broker, made.allow_plaintext, made.page_token_file) == (None, False, None)
    assert made.listen is PAGE
    assert PAGE.is_loopback


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
        ({"XDG_DATA_HOME": "/data"}, "/data/allomfree-collector"),
        ({"ALLOMFREE_DATA_DIR": "/mine", "STATE_DIRECTORY": "/var/lib/a"}, "/mine"),
    ],
)
def test_data_lies_where_the_system_says(environ: dict[str, str], expected: str) -> None:
    assert settings(Path("/dev/null"), environ).data_dir == Path(expected)


def test_data_lies_at_home_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    expected = Path("/home/ada/.local/share/allomfree-collector")
    assert settings(Path("/dev/null")).data_dir == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9180", ("::1", 9180)),
        ("off", None),
        ("none", None),
        ("", None),
    ],
)
def test_listening_is_an_address_or_off(value: str, expected: tuple[str, int] | None) -> None:
    assert settings(Path("/dev/null"), listen=value).listen == expected


def test_an_address_that_was_asked_for_is_not_the_default() -> None:
    """Only a port that nobody named may be taken without an error."""
    asked = settings(Path("/dev/null"), listen=str(PAGE)).listen
    assert asked == PAGE
    assert asked is not PAGE


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - looked at, not listened on
        ("pi", False),
    ],
)
def test_which_addresses_are_this_machines_alone(host: str, loopback: bool) -> None:
    assert Address(host, 1).is_loopback == loopback


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listen", "9180"),
        ("listen", ":9180"),
        ("listen", "localhost:http"),
        ("listen", "localhost:65536"),
        ("broker", "http://broker.example"),
        ("broker", "broker.example"),
        ("broker", "mqtts://broker.example:99999"),
        ("broker", "mqtts://user:secret@broker.example"),
        ("namespace", "a/b"),
        ("namespace", "+"),
        ("keepalive", "0"),
        ("keepalive", "soon"),
        ("log_level", "loud"),
        ("allow_plaintext", "perhaps"),
        ("data_dir", ""),
        ("client_id", ""),
    ],
)
def test_a_bad_value_is_refused_with_its_place(name: str, value: str) -> None:
    where = "ALLOMFREE_" + name.upper()
    with pytest.raises(SettingsError, match=f"^{where} = ") as refused:
        settings(Path("/dev/null"), {where: value})
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("line", ["brocker = 'mqtts://x'", "[table]", "password = 'secret'"])
def test_an_unknown_setting_in_the_file_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "collector.toml"
    path.write_text(line)
    with pytest.raises(SettingsError, match=r"is not a setting;.* (t|T)here are data_dir, broker"):
        settings(path)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        settings(tmp_path / "nosuch.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        settings(None, {"ALLOMFREE_CONFIG": str(tmp_path / "nosuch.toml")})


@pytest.mark.parametrize(
    ("url", "allow", "fine"),
    [
        ("mqtts://broker.example", False, True),
        ("mqtt://localhost", False, True),
        ("mqtt://127.0.0.1", False, True),
        ("mqtt://[::1]", False, True),
        ("mqtt://broker.example", False, False),
        ("mqtt://192.168.1.9", False, False),
        ("mqtt://localhost.example", False, False),
        ("mqtt://broker.example", True, True),
    ],
)
def test_plain_text_stays_on_this_machine_unless_asked_for(
    url: str, allow: bool, fine: bool
) -> None:
    """R18."""
    made = settings(Path("/dev/null"), broker=url, allow_plaintext=allow)
    if fine:
        assert made.required_broker() == made.broker
    else:
        with pytest.raises(SettingsError, match="not encrypted"):
            made.required_broker()


def test_a_campaigns_address_is_no_brokers() -> None:
    """Its namespace would be ignored without a word."""
    more = "mqtts://broker.example/ours/home-heat-1a2b3c4d"
    with pytest.raises(SettingsError, match=r"more than a broker; write it like mqtts://b.*:8883"):
        settings(Path("/dev/null"), broker=more)
    bare = settings(Path("/dev/null"), broker="mqtts://broker.example/")
    assert str(bare.broker) == "mqtts://broker.example:8883"


def test_no_broker_is_an_error_that_says_how_to_name_one() -> None:
    with pytest.raises(SettingsError, match=r"--broker .* ALLOMFREE_BROKER"):
        settings(Path("/dev/null")).required_broker()


def test_every_setting_is_a_field_and_has_a_word_of_help() -> None:
    assert {s.name for s in SETTINGS} == set(Settings.__slots__)
    assert all(len(s.help) > 10 and s.flag.startswith("--") for s in SETTINGS)
    assert not any("password" in s.name and "file" not in s.name for s in SETTINGS)
