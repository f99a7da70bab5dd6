"""Settings and sources: where values come from, and what is said, without the value, if wrong."""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edge_client import sources
from edge_client.errors import SettingsError, SourceFailure
from edge_client.policy import Policy
from edge_client.settings import SETTINGS, Settings, default_state_dir, resolve
from edge_client.sources import FACTS, build, build_all, read_fact, reader
from protocol_spec.programs.settings import Setting

# --- flags before variables before the file before defaults ---------------------------------------


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


def toml(value: object) -> str:
    return repr(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_flags_then_variables_then_file_then_default(
    config: Path, monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    flag, variable, file = EXAMPLES[setting.name]
    config.write_text(f"{setting.name} = {toml(file)}\n")
    environ = {setting.variable: variable}

    def found(flags: dict[str, Any], environ: dict[str, str], config: Path | None) -> Any:
        return getattr(resolve(flags, environ=environ, config=config), setting.name)

    assert found({setting.name: flag}, environ, config) == setting.parse(flag)
    assert found({setting.name: None}, environ, config) == setting.parse(variable)
    assert found({}, {}, config) == setting.parse(file)
    assert setting.name == "state_dir" or found({}, {}, None) == setting.default
    monkeypatch.setenv(setting.variable, variable)
    process = getattr(resolve({}), setting.name)
    assert process == setting.parse(variable), "the environment is the process's own by default"


def test_every_setting_is_in_the_table_and_every_field_is_a_setting() -> None:
    names = {setting.name for setting in SETTINGS}
    assert names == EXAMPLES.keys()
    others = {"policy", "sources", "config", "given"}
    assert {field.name for field in fields(Settings)} == names | others
    assert all(setting.help for setting in SETTINGS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("keepalive", text) for text in ("0", "65536", "soon", "1.5", "-5")),
        ("log_level", "loud"),
        ("allow_plaintext", "perhaps"),
        ("username", ""),
        ("state_dir", ""),
        ("credentials_for", ""),
        ("credentials_for", "https://b.example"),
        ("credentials_for", "mqtts://b.example/allomfree/home-heat-1a2b3c4d"),
    ],
)
def test_a_bad_value_is_reported_with_its_flag_variable_or_file(
    config: Path, name: str, value: str
) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == name)
    config.write_text(f"{name} = {toml(value)}\n")
    with pytest.raises(SettingsError, match=f"^{setting.flag} = .*Nothing was drawn or sent"):
        resolve({name: value}, environ={})
    with pytest.raises(SettingsError, match=f"^{setting.variable} = "):
        resolve({}, environ={setting.variable: value})
    with pytest.raises(SettingsError, match=f"^{config}: {name} = "):
        resolve({}, environ={}, config=config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"keep_alive = 3", "keep_alive is not a setting"),
        (b"password = 'hunter2'", "password is not a setting"),
        (b"keepalive = 1.5", "keepalive"),
        (b"credentials_for = 5", "credentials_for"),
        (b"policy = 3", "policy must be a table"),
        (b"sources = 'x'", "sources must be a table"),
        (b"[policy]\nmax_eps = 3", "policy.max_eps is not a limit"),
        (b"[policy]\nmax_eps_inf = 'x'", "policy.max_eps_inf = 'x'"),
        (b"keepalive = ", "is not TOML"),
        (b"\xef\xbb\xbfkeepalive = 3", "is not TOML"),
        (b"\xff\xfe\x00", "is not TOML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(
    config: Path, text: bytes | None, message: str
) -> None:
    if text is not None:
        config.write_bytes(text)
    with pytest.raises(SettingsError) as refused:
        resolve({}, environ={"ALLOMFREE_CONFIG": str(config)})
    for part in (str(config), message, "Nothing was drawn or sent"):
        assert part in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_file_is_never_written(config: Path) -> None:
    config.write_text("# mine\nkeepalive   = 7\n[policy]\nmax_values = 2\n")
    before = config.read_bytes(), config.stat().st_mtime_ns
    settings = resolve({"username": "me"}, environ={"ALLOMFREE_KEEPALIVE": "9"}, config=config)
    settings.credentials()
    assert settings.policy == Policy(max_values=2)
    assert (config.read_bytes(), config.stat().st_mtime_ns) == before
    assert [path.name for path in config.parent.iterdir() if path.is_file()] == ["edge.toml"]


def test_the_users_own_file_is_found(home: Path, config: Path) -> None:
    found = home / ".config" / "allomfree" / "edge.toml"
    found.parent.mkdir(parents=True)
    found.write_text("keepalive = 7\n")
    config.write_text("keepalive = 8\n")
    assert resolve({}, environ={}).keepalive == 7
    assert resolve({}, environ={"ALLOMFREE_CONFIG": str(config)}).keepalive == 8
    assert resolve({}, config=found, environ={"ALLOMFREE_CONFIG": str(config)}).keepalive == 7


def test_the_default_state_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve({}, environ={}).state_dir == home / ".local" / "state" / "allomfree-edge"
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert resolve({}, environ={}).state_dir == Path("/elsewhere/allomfree-edge")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/agent:/var/lib/other")
    assert resolve({}, environ={}).state_dir == Path("/var/lib/agent")
    assert resolve({"state_dir": "~/mine"}, environ={}).state_dir == home / "mine"


def test_without_systemd_its_user_has_the_same_state(home: Path, tmp_path: Path) -> None:
    """cron knows no STATE_DIRECTORY: a second state would draw and reveal again."""
    service, link = tmp_path / "service", tmp_path / "link"
    environ, own = {"XDG_STATE_HOME": str(home)}, home / "allomfree-edge"
    assert default_state_dir(environ, service) == own
    service.mkdir()
    assert default_state_dir(environ, service) == service
    link.symlink_to(service)
    assert default_state_dir(environ, link) == own
    assert default_state_dir(environ, Path("/proc/1")) == own or not os.geteuid()
    own.mkdir()
    assert default_state_dir(environ, service) == own, "one that is there stays"


def test_the_password_comes_from_file_or_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve({}, environ={}).credentials().password is None
    monkeypatch.setenv("ALLOMFREE_PASSWORD", "from the environment")
    from_environment = resolve({}, environ={}).credentials()
    assert from_environment.password == "from the environment"  # noqa: S105
    file = tmp_path / "password"
    settings = resolve({"password_file": str(file)}, environ={})
    for content in (None, b"\xff\xfe"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(SettingsError, match=f"password file {file} cannot be read"):
            settings.credentials()
    file.write_text(" from the file \n")
    assert settings.credentials().password == " from the file "  # noqa: S105
    assert "from the" not in repr(settings) + repr(settings.credentials())
    assert "password" not in {setting.name for setting in SETTINGS}


# --- sources --------------------------------------------------------------------------------------


SECRET = "marmalade"  # noqa: S105 - the value nobody else may see


def failure(table: dict[str, Any]) -> str:
    """What reading a source fails with; neither it nor anything behind it holds the value."""
    with pytest.raises(SourceFailure, match="reports go on without one") as failed:
        build("fuel", table).read()
    error: BaseException | None = failed.value
    while error is not None:
        assert SECRET not in f"{error!r} {vars(error)}"
        error = error.__context__
    assert SECRET not in "".join(traceback.format_exception(failed.value))
    return str(failed.value)


def wrong(table: Any) -> str:
    """What a table is refused with, also without the value."""
    with pytest.raises(SettingsError, match=r"sources\.fuel") as refused:
        build_all({"fuel": table})
    assert SECRET not in str(refused.value)
    return str(refused.value)


def command(*words: str, **options: Any) -> dict[str, Any]:
    return {"kind": "command", "command": list(words), **options}


def json_source(path: Path, content: object, field: str) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return {"kind": "json", "file": str(path), "field": field}


def test_static_values_and_commands() -> None:
    for value in ("wood", 3, 2.5, True):
        assert build("fuel", {"value": value}).read() == value
        assert build("fuel", {"kind": "static", "value": value}).read() == value
    spaced = command(sys.executable, "-c", "print('  wood \\n')")
    assert build("fuel", spaced).read() == "wood"
    shell = command("echo", "$HOME;", "`x`")
    assert build("fuel", shell).read() == "$HOME; `x`", "it is not given to a shell"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (f"print('{SECRET}'); raise SystemExit(3)", "ended with code 3"),
        (f"raise ValueError('{SECRET}')", "ended with code 1"),
        (f"print('{SECRET}', flush=True); import time; time.sleep(60)", "took longer than 0.3 s"),
        ("pass", "printed nothing"),
        ("import sys; sys.stdout.buffer.write(bytes([255, 254]))", "could not be run"),
        ("print(input())", "ended with code 1"),
    ],
)
def test_a_failing_command(code: str, message: str) -> None:
    seconds = 0.3 if "sleep" in code else 30.0
    assert message in failure(command(sys.executable, "-c", code, timeout=seconds))


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/no/such/interpreter {SECRET}")
    program.chmod(0o700)
    for name in ("/no/such/program", str(program), str(tmp_path), "a\0b"):
        assert "could not be run" in failure(command(name))


def test_a_command_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: neither the broker's password nor what the service manager gave this process; only what
    the owner names."""
    for name in ("ALLOMFREE_PASSWORD", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "AWS_SECRET", "X"):
        monkeypatch.setenv(name, "hunter2")
    for name, value in {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SENSOR": "attic"}.items():
        monkeypatch.setenv(name, value)
    text = str(build("fuel", command("env")).read())
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert "hunter2" not in text
    assert {"PATH", "LC_ALL", "TZ"} <= names
    assert {name for name in names if not name.startswith("LC_")} <= {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR")
    }
    named = build("fuel", command("env", environment=["SENSOR", "NOT_SET"])).read()
    assert "SENSOR=attic" in str(named)
    assert "NOT_SET" not in str(named)
    for names_given in ("PATH", [1], ["ALLOMFREE_PASSWORD"]):
        with pytest.raises(ValueError, match="environment"):
            build("fuel", command("env", environment=names_given))


@pytest.mark.parametrize(
    ("content", "field", "value"),
    [
        ({"fuel": "wood"}, "fuel", "wood"),
        ({"status": {"fuel": "wood"}}, "status.fuel", "wood"),
        ({"rooms": [{"t": 1}, {"t": 21.5}]}, "rooms.1.t", 21.5),
        ([False, True], "1", True),
    ],
)
def test_json(tmp_path: Path, content: object, field: str, value: object) -> None:
    assert build("fuel", json_source(tmp_path / "f", content, field)).read() == value


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        ({"fuel": SECRET}, "other", "has no field 'other'"),
        ({"fuel": SECRET}, "fuel.deeper", "has no field"),
        ([SECRET], "1", "has no field"),
        ([SECRET], "x", "has no field"),
        ({"fuel": [SECRET]}, "fuel", "holds neither text nor a number"),
        ({"fuel": None, "x": SECRET}, "fuel", "holds neither text nor a number"),
        (f'{{"fuel": "{SECRET}"', "fuel", "is not JSON"),
        ("[" * 100_000, "fuel", "is not JSON"),
        ("", "fuel", "is not JSON"),
    ],
)
def test_failing_json(tmp_path: Path, content: object, field: str, message: str) -> None:
    found = failure(json_source(tmp_path / "f", content, field))
    assert message in found
    assert str(tmp_path / "f") in found


def test_a_json_file_that_cannot_be_read(tmp_path: Path) -> None:
    table = {"kind": "json", "file": str(tmp_path / "f"), "field": "x"}
    assert "cannot be read: No such file" in failure(table)
    (tmp_path / "f").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in failure(table)
    assert "cannot be read: Is a directory" in failure({**table, "file": str(tmp_path)})


def test_machine_facts() -> None:
    def read(fact: str) -> Any:
        return build("fact", {"kind": "machine", "fact": fact}).read()

    def unknown() -> str:
        raise OSError("no such sensor")

    for fact in FACTS:
        with suppress(SourceFailure):  # not every machine has all of them
            assert isinstance(read(fact), str | int | float)
    assert read("architecture") == platform.machine()
    assert str(read("cpu_count")).isdigit()  # so that it can be one of the values "1", "2", "4"
    assert read("memory_gib") > 0.01
    assert read("uptime_days") > 0
    with pytest.raises(SourceFailure, match="does not report its model; no value"):
        read_fact("model", {"model": unknown})


def returns(unit: str) -> str:
    return f"wood in {unit}"


def fails() -> str:
    raise RuntimeError(SECRET)


def test_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with three of them is installed."""
    package = tmp_path / "plugins-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 1.0\n")
    targets = {"good": "returns", "bad": "fails", "gone": "no_such_function"}
    lines = [f"{name} = {__name__}:{target}" for name, target in targets.items()]
    (package / "entry_points.txt").write_text("\n".join([f"[{sources.PLUGINS}]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)

    def plugin(name: str, **options: str) -> dict[str, Any]:
        return {"kind": "plugin", "name": name, **options}

    assert build("fuel", plugin("good", unit="kg")).read() == "wood in kg"
    assert failure(plugin("bad")).startswith("the plugin 'bad' failed with RuntimeError")
    assert "failed with TypeError" in failure(plugin("good", wrong=SECRET))
    missing = "no such plugin is installed (installed: bad, gone, good)"
    assert missing in wrong(plugin("other"))
    assert "cannot be loaded (AttributeError)" in wrong(plugin("gone"))
    assert "missing" in wrong({"kind": "plugin"})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "choose a kind of command, json, machine, plugin, static"),
        ({"valu": SECRET}, 'or write value = ...; did you mean "value"?'),
        ({"kindd": "command", "command": ["true"]}, 'or write value = ...; did you mean "kind"?'),
        ({"kind": "magic"}, "choose one of"),
        ({"kind": ["static"]}, "choose one of"),
        ({"kind": "static"}, "missing"),
        ({"value": SECRET, "other": SECRET}, "unexpected keyword argument 'other'"),
        ({"kind": "command"}, "missing"),
        ({"kind": "command", "command": "cat x"}, "must be a list of words"),
        ({"kind": "command", "command": []}, "must be a list of words"),
        (command("x", 1), "must be a list of words"),  # type: ignore[arg-type]
        (command("x", timeout="1"), "timeout must be a number"),
        (command("x", timeout=0), "timeout must be a number"),
        ({"kind": "json", "file": "x"}, "missing"),
        ({"kind": "json", "file": "x", "field": 3}, "must be text"),
        ({"kind": "machine", "fact": "age"}, "fact = 'age': choose one of architecture"),
        (SECRET, "must be a table"),
        ([SECRET], "must be a table"),
    ],
)
def test_a_source_that_cannot_be_built_says_what_is_wrong(table: Any, message: str) -> None:
    found = wrong(table)
    assert message in found
    assert "__init__" not in found


def test_only_the_source_that_is_asked_for_is_read() -> None:
    read = reader(build_all({"fuel": {"value": "wood"}, "x": command("/no")}))
    assert read("fuel") == "wood"
    with pytest.raises(SourceFailure):
        read("x")
    with pytest.raises(SourceFailure, match=r"Add \[sources\.room\] to the configuration file"):
        read("room")
