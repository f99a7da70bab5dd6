"""Commands that take every setting as a flag and end in one clear line, never in a traceback."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from protocol_spec.errors import AllomfreeError, ManifestError, ParameterError, UnknownValue
from protocol_spec.programs.logs import set_up
from protocol_spec.programs.settings import Setting, wrong

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
STYLE = {"help_option_names": ["-h", "--help"], "max_content_width": 96}

Command = Callable[..., None]


def version_option(program: str) -> Callable[[Command], Command]:
    """`--version`, which looks it up only when asked: that costs a device 0.7 MB."""

    def show_version(context: click.Context, _option: click.Parameter, asked: bool) -> None:
        if not asked or context.resilient_parsing:
            return
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            number = version("allomfree")
        except PackageNotFoundError:
            number = "unknown"
        click.echo(f"{program}, version {number}")
        context.exit()

    return click.option(
        "--version",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show_version,
        help="Show the version and exit.",
    )


def command_of(
    group: click.Group, settings: Sequence[Setting], resolve: Callable[..., Any], program: str
) -> Callable[[Command], click.Command]:
    """A decorator that makes a function of resolved settings into a command of a group."""

    def decorate(function: Command) -> click.Command:
        @wraps(function)
        def resolved(*, config: Path | None, **options: Any) -> None:
            flags = {setting.name: options.pop(setting.name) for setting in settings}
            with_clear_errors(
                lambda: _call(function, _resolved(resolve, flags, config), options), program
            )

        wrapped: Command = resolved
        for setting in reversed(settings):
            kind: dict[str, Any] = {"is_flag": True, "default": None}
            options = kind if setting.default is False else {}
            text = setting.help + (f" [{setting.default}]" if setting.default else "")
            wrapped = click.option(setting.flag, setting.name, help=text, **options)(wrapped)
        where = click.Path(path_type=Path)
        name = f"{program}.toml"
        text = f"configuration file [~/.config/allomfree/{name} or /etc/allomfree/{name}]"
        short = (function.__doc__ or "").strip().splitlines()[0]
        with_config = click.option("--config", type=where, help=text)(wrapped)
        return group.command(short_help=short, context_settings=STYLE)(with_config)

    return decorate


def _call(function: Command, settings: Any, options: dict[str, Any]) -> None:
    set_up(settings.log_level)
    function(settings, **options)


def _resolved(resolve: Callable[..., Any], flags: dict[str, Any], config: Path | None) -> Any:
    try:
        return resolve(flags, config=config)
    except OSError as error:  # such as a home of somebody else's, kept by sudo
        what = f"{error.filename} cannot be looked at: {error.strerror}"
        raise wrong(f"{what}. Name the configuration with --config") from None


def with_clear_errors(call: Callable[[], None], program: str) -> None:
    """Turn what a user can mend into one message and an exit code."""
    try:
        call()
    except (ManifestError, ParameterError, UnknownValue) as error:
        fail(str(error), 2)
    except AllomfreeError as error:
        fail(str(error), getattr(error, "exit_code", 1))
    except BrokenPipeError:
        raise  # whoever reads our output has had enough; click ends quietly
    except (sqlite3.DatabaseError, OSError) as error:
        fail(
            f"the stored data cannot be used: {error}. Nothing new was drawn or sent. "
            f"See: allomfree-{program} doctor",
            1,
        )


def fail(message: str, code: int) -> None:
    """One message on standard error, and the end."""
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


def show(facts: Any, as_json: bool, text: Callable[[Any], str]) -> None:
    """Print facts as JSON or as text."""
    click.echo(json.dumps(facts, ensure_ascii=False) if as_json else text(facts))
