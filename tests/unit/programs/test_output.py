"""A10: nothing hidden reaches a terminal, from any command, and data keep their meaning."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from collector.commands import main as collector
from collector.settings import SETTINGS as COLLECTOR_SETTINGS
from edge_client.cli import main as edge
from edge_client.settings import SETTINGS as EDGE_SETTINGS
from protocol_spec.programs.cli import Program
from protocol_spec.programs.output import Gate, allow_colours, as_json, set_up_logging
from protocol_spec.programs.settings import Setting
from tests.support.campaigns import manifest_text
from tests.support.command_line import empty_home, undisturbed
from tests.support.hostile import ESCAPES, HOSTILE, LONG, hidden_in, toml


def through(
    text: str, *, longest: int | None = None, colours: bool = False, encoding: str = "utf-8"
) -> str:
    behind = io.BytesIO()
    stream = io.TextIOWrapper(behind, encoding=encoding, newline="", write_through=True)
    gate = Gate(stream, longest)
    gate.colours = colours
    gate.write(text)
    return behind.getvalue().decode(encoding)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_hidden_passes(text: str) -> None:
    for colours in (False, True):
        written = through(text, longest=500, colours=colours)
        assert hidden_in(written.replace("\x1b[2m", "")) == set()
        assert len(written) < 5000


COLOURED = "\x1b[34m██\x1b[0m \x1b[2J\x1b]0;title\x07\n"
ESCAPED = "\\u{1b}[34m██\\u{1b}[0m \\u{1b}[2J\\u{1b}]0;title\\u{7}\n"


@pytest.mark.parametrize(
    ("text", "options", "written"),
    [
        pytest.param(
            "one\ttwo\nWärmepumpe …\n", {}, "one\ttwo\nWärmepumpe …\n", id="ordinary text"
        ),
        pytest.param(LONG, {}, LONG, id="long text"),
        pytest.param(COLOURED, {}, ESCAPED, id="colours are escaped"),
        pytest.param(
            COLOURED,
            {"colours": True},
            "\x1b[34m██\x1b[0m \\u{1b}[2J\\u{1b}]0;title\\u{7}\n",
            id="colours pass where asked for, and nothing else",
        ),
        pytest.param(
            f"a\n{'b' * 30}\nc\n",
            {"longest": 20},
            f"a\n{'b' * 20}… (10 more)\nc\n",
            id="a long line is cut",
        ),
        pytest.param(
            "é …\n", {"encoding": "latin-1"}, "é \\u2026\n", id="what an encoding lacks is escaped"
        ),
    ],
)
def test_text_as_it_is_written(text: str, options: dict[str, Any], written: str) -> None:
    assert through(text, **options) == written


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800"], ids=range(len(HOSTILE) + 1))
def test_json_hides_nothing_and_means_the_same(text: str) -> None:
    line = as_json({text: [text]})
    assert hidden_in(line) == set()
    assert json.loads(line) == {text: [text]}


# --- a whole program ----------------------------------------------------------------------------


@click.group("program", cls=Program)
def program() -> None:
    """A program that repeats its arguments."""


@program.command()
@click.argument("how")
@click.argument("text")
def say(how: str, text: str) -> None:
    """Print it in every possible way."""
    if how == "log":
        set_up_logging("info")
        logging.getLogger("allomfree.test").warning("it said %s", text)
    elif how == "colours":
        allow_colours()
        click.echo(text)
    elif how == "fault":
        raise KeyError(text)
    elif how == "write":
        sys.stdout.write(text)
        sys.stderr.write(text)
    elif how == "usage":
        raise click.UsageError(text)
    else:
        click.confirm(text, err=True)


@pytest.mark.parametrize("how", ["log", "colours", "fault", "write", "usage", "confirm"])
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_every_kind_of_output_is_escaped(how: str, text: str) -> None:
    done = CliRunner().invoke(program, ["say", how, text], catch_exceptions=False)
    assert hidden_in(done.output) == set()
    assert len(done.stderr) < 10_000
    assert done.exit_code in (0, 1, 2)
    logging.getLogger("allomfree").handlers = []


def test_the_log_is_ours_alone() -> None:
    """A library's warning would be a bare line among JSON."""
    code = (
        "import logging; from protocol_spec.programs.output import set_up_logging; "
        "set_up_logging('info'); logging.getLogger('psycopg').error('raw'); "
        "logging.getLogger('allomfree').info('ours')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["message"] == "ours"


def test_a_fault_is_one_line_that_says_where_and_not_what() -> None:
    """A traceback would repeat the text, which may be a device's value."""
    before = sys.stdout, sys.stderr
    with pytest.raises(SystemExit):
        program.main(["say", "fault", "x"])
    assert (sys.stdout, sys.stderr) == before
    done = CliRunner().invoke(program, ["say", "fault", "private"], catch_exceptions=False)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: a fault of this program, KeyError (")
    assert "test_output.py:" in done.stderr
    assert "private" not in done.stderr


def test_a_wrong_command_and_option_are_shown_safely() -> None:
    for words in (
        ["\x1b[2J"],
        ["--\x9b2J"],
        ["say", "\x1b", "b", "\u202e"],
        ["say", "a", LONG, "c"],
    ):
        done = CliRunner().invoke(program, words)
        assert done.exit_code == 2
        assert hidden_in(done.output) == set()
        assert len(done.output) < 5000


# --- A10: every command of both programs over hostile files, options and variables.


GOOD = manifest_text(slug="heat")
FIELDS = re.findall(r"(?m)^(\w+) = ", GOOD)
ODD = ("nan", "-1", "[[1], 2]", "{a = 1}", "1979-05-27", "0x" + "f" * 9000, '""')
PROGRAMS: dict[str, tuple[click.Group, tuple[Setting, ...]]] = {
    "edge": (edge, tuple(EDGE_SETTINGS)),
    "collector": (collector, tuple(COLLECTOR_SETTINGS)),
}
SERVING = ("run", "page")  # they would not end if a hostile text were a good one

both = pytest.mark.parametrize("program", PROGRAMS)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """And a working directory: a hostile text may well name a new directory."""
    monkeypatch.chdir(tmp_path)
    with undisturbed():
        yield empty_home(tmp_path, monkeypatch)


def checked(program: str, *words: object, **environ: str) -> Result:
    """Run it: it must end with an exit code of its own and little output, none of it hostile."""
    done = CliRunner(env=environ).invoke(
        PROGRAMS[program][0], [str(word) for word in words], catch_exceptions=False
    )
    case = f"{program} {[str(word)[:60] for word in words]} {environ}: {done.output[:3000]}"
    assert done.exit_code in (0, 1, 2, 3), case
    assert hidden_in(done.output) == set(), case
    assert len(done.output) < 8000, case
    assert "fault of this program" not in done.output, case
    assert "Traceback" not in done.output, case
    return done


def manifests() -> Iterator[str]:
    for text in HOSTILE:
        yield f"{toml(text)} = {toml(text)}\n{GOOD}"
        yield f"{GOOD}\n[{toml(text)}]\n{toml(text)} = 1\n"
        yield f"x = {{ {toml(text)} = [{toml(text)}] }}\n{GOOD}"
        yield text
    for number, field in enumerate(FIELDS):
        for value in (toml(HOSTILE[number % len(HOSTILE)]), *ODD):
            before, _, rest = GOOD.partition(f"{field} = ")
            yield f"{before}{field} = {value}\n{rest.partition(chr(10))[2]}"
    yield "".join(f"u{i} = '\x1b[2J'\n" for i in range(5000)) + GOOD
    yield "".join(f'u{i} = "\\u001b[2J"\n' for i in range(5000)) + GOOD
    yield "x = " + "[" * 20_000
    yield "a." * 5000 + "b = 1"


def test_hostile_manifests(tmp_path: Path) -> None:
    file = tmp_path / "heat.toml"
    for text in manifests():
        file.write_text(text, encoding="utf-8")
        checked("collector", "plan", file, "--devices", 1000)
        checked("edge", "join", "--manifest", file, "--broker", "mqtt://localhost", "--preview")


@both
def test_hostile_arguments_and_options(program: str) -> None:
    """Bytes of the command line that are not UTF-8 arrive as lone surrogates."""
    for number, text in enumerate(HOSTILE):
        checked(program, text)
        checked(program, f"--{text}")
        for name, command in PROGRAMS[program][0].commands.items():
            checked(program, name, text, text, text)
            options = [p for p in command.params if isinstance(p, click.Option) and not p.is_flag]
            option = options[number % len(options)]
            if name not in SERVING and option.name != "timeout":
                checked(program, name, option.opts[0], text)
    for name in PROGRAMS[program][0].commands:
        checked(program, name, "\udcff\udc9b", "--config", "\udcff")


@both
def test_hostile_settings(program: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    for number, setting in enumerate(PROGRAMS[program][1]):
        text = HOSTILE[number % len(HOSTILE)]
        for value in (toml(text), toml("a\0b"), *ODD):
            file.write_text(f"{setting.name} = {value}\n", encoding="utf-8")
            checked(program, "status", "--config", file)
        checked(program, "status", **{setting.variable: text})

    for text in map(toml, HOSTILE):
        for content in (
            f"{text} = 1",
            f"[policy]\n{text} = {text}",
            f"[policy]\nmax_eps_inf = {text}",
            f"[policy]\nsources = [{text}]\ncampaigns = {text}",
            f"[sources]\n{text} = 1",
            f"[sources.{text}]\nkind = {text}",
            f'[sources.fuel]\nkind = "json"\nfile = {text}\nfield = {text}',
            f'[sources.fuel]\nkind = "plugin"\nname = {text}',
            f'[sources.fuel]\nkind = "machine"\nfact = {text}',
            f"[sources.fuel]\n{text} = {text}",
        ):
            file.write_text(content, encoding="utf-8")
            for command in ("status", "doctor"):
                checked(program, command, "--config", file)


@pytest.mark.parametrize("text", ESCAPES, ids=range(len(ESCAPES)))
def test_hostile_names_of_files(tmp_path: Path, text: str) -> None:
    """A file's name may hold a line end, and then look like another message."""
    file = tmp_path / f"{text}\nerror: run this"
    file.write_text("x = [", encoding="utf-8")
    shown = checked("collector", "status", "--config", file).stderr
    assert "\\u{a}error: run this" in shown
    checked("edge", "join", "--manifest", file, "--broker", "mqtt://localhost")
