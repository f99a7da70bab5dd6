"""Flags before variables before the file before defaults; errors say where the bad value is."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edge_client.errors import SettingsError
from edge_client.policy import Policy
from edge_client.settings import SETTINGS, Settings, default_state_dir, resolve
from protocol_spec.programs.settings import Setting

EXAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "state_dir": ("/flag", "/variable", "/file"),
    "username": ("by-flag", "by-variable", "by-file"),
    "password_file": ("/flag", "/variable", "/file"),
    "ca_file": ("/flag", "/variable", "/file"),
    "cert_file": ("/flag", "/variable", "/file"),
    "key_file": ("/flag", "/variable", "/file"),
    "allow_plaintext": (True, "yes", True),
    "keepalive": ("11", "12", 13),
    "log_level": ("debug", "WARNING", "error"),
    "language": ("de", "fr", "EN"),
    "credentials_for": ("flag.example", "mqtts://a.example,mqtt://[::1]:1", ["b.example:99"]),
}


@pytest.fixture(autouse=True)
def _no_other_settings(home: Path) -> None:
    """Nothing of this machine is seen."""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "edge.toml"
    path.write_text(text, encoding="utf-8")
    return path


def toml(value: object) -> str:
    return repr(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_flags_then_variables_then_file_then_default(tmp_path: Path, setting: Setting) -> None:
    flag, variable, file = EXAMPLES[setting.name]
    config = written(tmp_path, f"{setting.name} = {toml(file)}\n")
    environ = {setting.variable: variable}

    def found(flags: dict[str, Any], environ: dict[str, str], config: Path | None) -> Any:
        return getattr(resolve(flags, environ=environ, config=config), setting.name)

    assert found({setting.name: flag}, environ, config) == setting.parse(flag)
    assert found({setting.name: None}, environ, config) == setting.parse(variable)
    assert found({}, {}, config) == setting.parse(file)
    assert setting.name == "state_dir" or found({}, {}, None) == setting.default


def test_every_setting_is_in_the_table_and_every_field_is_a_setting() -> None:
    names = {setting.name for setting in SETTINGS}
    assert names == EXAMPLES.keys()
    assert {field.name for field in fields(Settings)} == names | {
        "policy",
        "sources",
        "config",
        "given",
    }
    assert all(setting.help for setting in SETTINGS)


BAD = [
    ("keepalive", "0"),
    ("keepalive", "65536"),
    ("keepalive", "soon"),
    ("keepalive", "1.5"),
    ("keepalive", "-5"),
    ("log_level", "loud"),
    ("allow_plaintext", "perhaps"),
    ("username", ""),
    ("state_dir", ""),
    ("credentials_for", ""),
    ("credentials_for", "https://b.example"),
    ("credentials_for", "mqtts://b.example/allomfree/home-heat-1a2b3c4d"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_says_which_flag_variable_or_file(
    tmp_path: Path, name: str, value: str
) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == name)
    config = written(tmp_path, f"{name} = {toml(value)}\n")
    with pytest.raises(SettingsError, match=f"^{setting.flag} = .*Nothing was drawn or sent"):
        resolve({name: value}, environ={})
    with pytest.raises(SettingsError, match=f"^{setting.variable} = "):
        resolve({}, environ={setting.variable: value})
    with pytest.raises(SettingsError, match=f"^{config}: {name} = "):
        resolve({}, environ={}, config=config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("keep_alive = 3", "keep_alive is not a setting"),
        ("password = 'hunter2'", "password is not a setting"),
        ("[broker]\nurl = 'x'", "broker is not a setting"),
        ("state_dir = 5", "state_dir"),
        ("username = true", "username"),
        ("keepalive = 1.5", "keepalive"),
        ("keepalive = true", "keepalive"),
        ("credentials_for = 5", "credentials_for"),
        ("credentials_for = [5]", "credentials_for"),
        ("policy = 3", "policy must be a table"),
        ("sources = 'x'", "sources must be a table"),
        ("[policy]\nmax_eps = 3", "policy.max_eps is not a limit"),
        ("[policy]\nmax_eps_inf = 'x'", "policy.max_eps_inf = 'x'"),
        ("keepalive = ", "is not TOML"),
        ("keepalive = 3\nkeepalive = 4", "is not TOML"),
        ("\ufeffkeepalive = 3", "is not TOML"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    config = written(tmp_path, text)
    with pytest.raises(SettingsError) as refused:
        resolve({}, environ={}, config=config)
    assert str(config) in str(refused.value)
    assert expected in str(refused.value)
    assert "Nothing was drawn or sent" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_file_that_is_not_text_or_not_there_is_named(tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    with pytest.raises(SettingsError, match=f"{config} cannot be read: No such file"):
        resolve({}, environ={"ALLOMFREE_CONFIG": str(config)})
    config.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=f"{config} is not TOML"):
        resolve({}, config=config, environ={})
    with pytest.raises(SettingsError, match="Is a directory"):
        resolve({}, config=tmp_path, environ={})


def test_the_file_is_never_written(tmp_path: Path) -> None:
    config = written(tmp_path, "# mine\nkeepalive   = 7\n[policy]\nmax_values = 2\n")
    config.chmod(0o400)
    before = config.read_bytes(), config.stat()
    settings = resolve({"username": "me"}, environ={"ALLOMFREE_KEEPALIVE": "9"}, config=config)
    settings.credentials()
    assert (config.read_bytes(), config.stat().st_mtime_ns) == (before[0], before[1].st_mtime_ns)
    assert settings.policy == Policy(max_values=2)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["edge.toml"]


def test_the_users_own_file_is_found(home: Path) -> None:
    found = home / ".config" / "allomfree" / "edge.toml"
    found.parent.mkdir(parents=True)
    found.write_text("keepalive = 7\n")
    assert resolve({}, environ={}).keepalive == 7
    other = written(home, "keepalive = 8\n")
    assert resolve({}, environ={"ALLOMFREE_CONFIG": str(other)}).keepalive == 8
    assert resolve({}, config=found, environ={"ALLOMFREE_CONFIG": str(other)}).keepalive == 7


def test_where_the_memory_is_by_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve({}, environ={}).state_dir == home / ".local" / "state" / "allomfree-edge"
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert resolve({}, environ={}).state_dir == Path("/elsewhere/allomfree-edge")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/agent:/var/lib/other")
    assert resolve({}, environ={}).state_dir == Path("/var/lib/agent")
    assert resolve({"state_dir": "~/mine"}, environ={}).state_dir == home / "mine"


def test_without_systemd_its_user_has_the_same_memory(home: Path, tmp_path: Path) -> None:
    """As cron does, which knows no STATE_DIRECTORY: a second memory would reveal again."""
    service = tmp_path / "service"
    environ = {"XDG_STATE_HOME": str(home)}
    assert default_state_dir(environ, service) == home / "allomfree-edge"
    service.mkdir()
    assert default_state_dir(environ, service) == service
    link = tmp_path / "link"
    link.symlink_to(service)
    assert default_state_dir(environ, link) == home / "allomfree-edge"
    assert (
        default_state_dir(environ, Path("/proc/1")) == home / "allomfree-edge" or not os.geteuid()
    )
    (home / "allomfree-edge").mkdir()
    assert default_state_dir(environ, service) == home / "allomfree-edge", "one that is there stays"


def test_the_password_comes_from_file_or_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve({}, environ={}).credentials().password is None
    monkeypatch.setenv("ALLOMFREE_PASSWORD", "from the environment")
    from_environment = resolve({}, environ={}).credentials()
    assert from_environment.password == "from the environment"  # noqa: S105
    file = tmp_path / "password"
    file.write_text(" from the file \n")
    settings = resolve({"password_file": str(file)}, environ={})
    assert settings.credentials().password == " from the file "  # noqa: S105
    assert "from the" not in repr(settings) + repr(settings.credentials())
    assert "password" not in {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_password_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    settings = resolve({"password_file": str(file)}, environ={})
    with pytest.raises(SettingsError, match=f"password file {file} cannot be read"):
        settings.credentials()


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOMFREE_KEEPALIVE", "21")
    assert os.environ["ALLOMFREE_KEEPALIVE"] == "21"
    assert resolve({}).keepalive == 21
