"""A10: the last gate before a terminal lets nothing hidden pass, and data keep their meaning."""

from __future__ import annotations

import io
import json
import logging
import sys

import click
import pytest
from click.testing import CliRunner

from protocol_spec.programs.cli import Program
from protocol_spec.programs.output import Gate, allow_colours, as_json, set_up_logging
from tests.support.hostile import HOSTILE, LONG, hidden_in


class Terminal(io.StringIO):
    """A stream that somebody looks at, in some encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


def through(text: str, *, longest: int | None = None, colours: bool = False) -> str:
    behind = Terminal()
    gate = Gate(behind, longest)
    gate.colours = colours
    gate.write(text)
    return behind.getvalue()


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_hidden_passes(text: str) -> None:
    for colours in (False, True):
        told = through(text, longest=500, colours=colours)
        assert hidden_in(told.replace("\x1b[2m", "")) == set()
        assert len(told) < 5000


def test_ordinary_text_passes_as_it_is() -> None:
    text = "one\ttwo\nWärmepumpe …\n"
    assert through(text) == text
    assert through(LONG) == LONG


def test_colours_pass_where_they_were_asked_for_and_nothing_else_does() -> None:
    text = "\x1b[34m██\x1b[0m \x1b[2J\x1b]0;title\x07\n"
    assert through(text) == "\\u{1b}[34m██\\u{1b}[0m \\u{1b}[2J\\u{1b}]0;title\\u{7}\n"
    coloured = through(text, colours=True)
    assert coloured == "\x1b[34m██\x1b[0m \\u{1b}[2J\\u{1b}]0;title\\u{7}\n"


def test_a_long_line_is_cut_and_the_others_stay() -> None:
    assert through("a\n" + "b" * 30 + "\nc\n", longest=20) == f"a\n{'b' * 20}… (10 more)\nc\n"


def test_what_an_encoding_lacks_is_escaped() -> None:
    behind = Terminal("latin-1")
    Gate(behind).write("é …\n")
    assert behind.getvalue() == "é \\u2026\n"


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800"], ids=range(len(HOSTILE) + 1))
def test_json_hides_nothing_and_means_the_same(text: str) -> None:
    line = as_json({text: [text]})
    assert hidden_in(line) == set()
    assert json.loads(line) == {text: [text]}


# --- a whole program ----------------------------------------------------------------------------


@click.group("program", cls=Program)
def program() -> None:
    """A program that repeats what it is told."""


@program.command()
@click.argument("how")
@click.argument("text")
def say(how: str, text: str) -> None:
    """Say it in every way there is."""
    logger = logging.getLogger("allomfree.test")
    if how == "log":
        set_up_logging("info")
        logger.warning("it said %s", text)
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
def test_every_way_out_goes_through_it(how: str, text: str) -> None:
    done = CliRunner().invoke(program, ["say", how, text], catch_exceptions=False)
    assert hidden_in(done.output) == set()
    assert len(done.stderr) < 10_000
    assert done.exit_code in (0, 1, 2)
    logging.getLogger("allomfree").handlers = []


def test_a_fault_is_one_line_that_says_where_and_not_what() -> None:
    """A traceback would repeat the text, which may be a device's value."""
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


def test_the_streams_are_given_back() -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(SystemExit):
        program.main(["say", "fault", "x"])
    assert (sys.stdout, sys.stderr) == before
