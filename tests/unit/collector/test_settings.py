"""Settings: flags before variables before the file before defaults, and errors that say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collector.settings import PAGE, SETTINGS, Address, Settings, resolve
from protocol_spec.programs.settings import SettingsError


def settings(
    environ: dict[str, str] | None = None, config: Path | None = Path("/dev/null"), **flags: Any
) -> Settings:
    return resolve(flags, config=config, environ={"HOME": "/nowhere", **(environ or {})})


def test_flags_come_before_variables_before_the_file_before_defaults(tmp_path: Path) -> None:
    config = tmp_path / "collector.toml"
    config.write_text("keepalive = 11\n")
    variable = {"ALLOMFREE_KEEPALIVE": "22"}
    assert settings(variable, config, keepalive="33").keepalive == 33
    assert settings(variable, config).keepalive == 22
    assert settings(None, config).keepalive == 11
    assert settings().keepalive == 60


def test_defaults_are_safe_and_every_setting_is_a_field_with_help() -> None:
    made = settings()
    assert (made.namespace, made.client_id) == ("allomfree", None)
    assert (made.broker, made.allow_plaintext, made.page_token_file) == (None, False, None)
    assert made.listen is PAGE
    assert PAGE.is_loopback
    assert {s.name for s in SETTINGS} == set(Settings.__slots__)
    assert all(len(s.help) > 10 and s.flag.startswith("--") for s in SETTINGS)
    assert not any("password" in s.name and "file" not in s.name for s in SETTINGS)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
        ({"XDG_DATA_HOME": "/data"}, "/data/allomfree-collector"),
        ({"ALLOMFREE_DATA_DIR": "/mine", "STATE_DIRECTORY": "/var/lib/a"}, "/mine"),
        ({}, "/home/ada/.local/share/allomfree-collector"),
    ],
)
def test_the_data_directory_follows_the_system(
    environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert settings(environ).data_dir == Path(expected)


def test_listening_is_an_address_or_off() -> None:
    assert settings(listen="127.0.0.1:0").listen == ("127.0.0.1", 0)
    assert settings(listen="[::1]:9180").listen == ("::1", 9180)
    assert [settings(listen=off).listen for off in ("off", "none", "")] == [None] * 3
    asked = settings(listen=str(PAGE)).listen
    assert asked == PAGE
    assert asked is not PAGE, "only a port that nobody named may be taken without an error"
    assert all(Address(host, 1).is_loopback for host in ("127.0.0.1", "::1", "localhost"))
    assert not any(Address(host, 1).is_loopback for host in ("0.0.0.0", "pi"))  # noqa: S104


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
        settings({where: value})
    assert refused.value.exit_code == 2


def test_a_file_with_an_unknown_setting_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "collector.toml"
    for line in ("brocker = 'mqtts://x'", "[table]", "password = 'secret'"):
        path.write_text(line)
        with pytest.raises(SettingsError, match=r"is not a setting;.* (t|T)here are data_dir, b"):
            settings(None, path)
    path.unlink()
    with pytest.raises(SettingsError, match="cannot be read"):
        settings(None, path)
    with pytest.raises(SettingsError, match="cannot be read"):
        settings({"ALLOMFREE_CONFIG": str(path)}, None)


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
    made = settings(broker=url, allow_plaintext=allow)
    if fine:
        assert made.required_broker() == made.broker
    else:
        with pytest.raises(SettingsError, match="not encrypted"):
            made.required_broker()


def test_a_broker_is_named_and_without_a_campaign() -> None:
    """A namespace in its address would be ignored silently."""
    with pytest.raises(SettingsError, match=r"more than a broker; write it like mqtts://b.*:8883"):
        settings(broker="mqtts://broker.example/ours/home-heat-1a2b3c4d")
    assert str(settings(broker="mqtts://b.example/").broker) == "mqtts://b.example:8883"
    with pytest.raises(SettingsError, match=r"--broker .* ALLOMFREE_BROKER"):
        settings().required_broker()
