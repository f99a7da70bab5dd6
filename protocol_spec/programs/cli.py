"""The command lines: every setting is a flag, and an error is one clear line, never a traceback.

A command's module is loaded when the command is typed: `--help` and `health` load no numpy, and the
list of commands can be shown where only the agent is installed.

A command that is printed to be pasted works where it is printed: it repeats the settings that this
one got as flags, names the program by its path where the shell would not find it, and uses `sudo`
where this one did.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import shlex
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from protocol_spec.errors import (
    AllomfreeError,
    ManifestError,
    ParameterError,
    UnknownValue,
    escaped,
    short,
)
from protocol_spec.programs import output
from protocol_spec.programs.output import gated, set_up_logging
from protocol_spec.programs.settings import Setting, SettingsError, WrongSetting


def install_command(extra: str) -> str:
    """The command that adds an extra to the environment of this program."""
    return f"{shlex.quote(sys.executable)} -m pip install '.[{extra}]', in a copy of the source"


# --- the table of commands -----------------------------------------------------------------------


class Verbs(MutableMapping[str, click.Command]):
    """Commands by name, in the order of `--help`.

    `package` holds their modules; `extra` is what to install if a library is missing, or "" where
    every install has all that is needed.
    """

    def __init__(self, package: str, extra: str, *rows: tuple[str, str, str]) -> None:
        self._package, self._extra = package, extra
        self._modules = {name: module for name, module, _ in rows}
        self.lines = {name: line for name, _, line in rows}
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module = f"{self._package}.{self._modules[name]}"
            try:
                self._loaded[name] = getattr(import_module(module), name.replace("-", "_"))
            except ModuleNotFoundError as missing:
                if not self._extra:
                    raise
                raise SettingsError(
                    f"{name} needs {missing.name}, which is not installed; nothing was done. "
                    f"Run: {install_command(self._extra)}"
                ) from None
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self.lines  # without loading it

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command
        self.lines[name] = command.short_help or ""

    def __delitem__(self, name: str) -> None:
        del self.lines[name]
        self._modules.pop(name, None)
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)


# --- commands to paste ---------------------------------------------------------------------------


_COMMAND: Final = re.compile(r"\b(allomfree-[a-z]+) ([a-z]+(?:-[a-z]+)*)\b")


def typed(program: str, verb: str, *words: str, without: Collection[str] = ()) -> str:
    """A command line of this program; `without` are settings that need not be repeated."""
    context = click.get_current_context(silent=True)
    flags = [] if context is None else list(_flags(context, without))
    return " ".join([_started(program), verb, *words, *map(shlex.quote, flags)])


def completed(text: str) -> str:
    """A text, such as an error, with each command of this program in it as `typed` writes it."""
    context = click.get_current_context(silent=True)
    root = None if context is None else context.find_root().command
    if not isinstance(root, click.Group):
        return text

    def complete(found: re.Match[str]) -> str:
        ours = found[1] == root.name and found[2] in root.commands
        return typed(found[1], found[2]) if ours else found[0]

    return _COMMAND.sub(complete, text)


def _flags(context: click.Context, without: Collection[str]) -> Iterator[str]:
    """The settings that were given as flags."""
    shared: Collection[str] = getattr(context.command, "shared", ())
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in shared and name not in without and given:
            yield option.opts[0]
            if context.params[name] is not True:
                yield str(context.params[name])


def _started(program: str, environ: Mapping[str, str] = os.environ) -> str:
    """How the program was started: by its name or its path, as another user or not."""
    file = Path(sys.argv[0])
    found = file.name == program and not shutil.which(program)
    name = shlex.quote(str(file)) if found else program
    user = os.geteuid()
    if environ.get("SUDO_UID", str(user)) == str(user):
        return name
    if user == 0:
        return f"sudo {name}"
    try:
        return f"sudo -u {shlex.quote(pwd.getpwuid(user).pw_name)} {name}"
    except KeyError:
        return f"sudo -u '#{user}' {name}"


# --- findings of `doctor` and `health` -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked, and what to do about it unless all is well. A warning is no
    fault yet."""

    what: str
    ok: bool
    text: str
    step: str = ""
    warning: bool = False

    @property
    def level(self) -> str:
        if not self.ok:
            return "fail"
        return "warn" if self.warning else "ok"

    def __str__(self) -> str:
        mark = {"fail": "FAIL"}.get(self.level, self.level)
        return f"{mark:<4}  {self.what}: {self.text}" + (
            f"\n      {self.step}" if self.step else ""
        )

    def facts(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "check": self.what,
            "ok": self.ok,
            "level": self.level,
            "finding": self.text,
            "next": self.step or None,
        }


def warned(what: str, text: str, step: str) -> Finding:
    return Finding(what, True, text, step, warning=True)


# --- the programs --------------------------------------------------------------------------------


AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
STYLE: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 96}
SHARED: Final = "Connection and settings"
HELP_ALL: Final = "allomfree.help_all"
LONGEST_MESSAGE: Final = 2000  # characters of an error, however much it quotes

log = logging.getLogger("allomfree.commands")

Function = Callable[..., None]
Facts = TypeVar("Facts")


class Program(click.Group):
    """A program whose help lists its commands in the order they were registered.

    All it writes goes through the streams of `output`. An unexpected error is one line too: a
    traceback would repeat foreign text, and perhaps a value.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        with gated():
            try:
                return super().main(*args, **options)
            except Exception as error:
                if not options.get("standalone_mode", True):
                    raise
                if isinstance(error, AllomfreeError):  # a library that is missing
                    fail(str(error), getattr(error, "exit_code", 1))
                fail(_unexpected(error), 1)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lines of the table without loading any command."""
        if not isinstance(self.commands, Verbs):
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(list(self.commands.lines.items()))


class SettingsCommand(click.Command):
    """A command whose `--help` shows its own options, and `--help-all` also the shared ones."""

    def __init__(self, *args: Any, shared: frozenset[str] = frozenset(), **options: Any) -> None:
        super().__init__(*args, **options)
        self.shared = shared

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        groups = [("Options", [p for p in options if p.name not in self.shared])]
        if ctx.meta.get(HELP_ALL):
            groups.append((SHARED, [p for p in options if p.name in self.shared]))
        for title, group in groups:
            with formatter.section(title):
                formatter.write_dl([row for p in group if (row := p.get_help_record(ctx))])


def _help_all(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        context.meta[HELP_ALL] = True
        click.echo(context.get_help())
        context.exit()


def command_of(
    settings: Sequence[Setting], resolve: Callable[..., Any], program: str
) -> Callable[[Function], click.Command]:
    """A decorator that turns a function of resolved settings into a command.

    The command takes every setting as a flag. All commands share these options, which saves a
    device 0.1 MB.
    """
    names = [setting.name for setting in settings]
    file = f"allomfree/{program}.toml"
    text = f"Configuration file.  [default: ~/.config/{file} or /etc/{file}]"
    config_option = click.Option(["--config"], type=click.Path(path_type=Path), help=text)
    shared = [config_option, *map(_option, settings)]
    help_all = click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_help_all,
        help="Also show connection and settings, which every command takes.",
    )  # fmt: skip
    in_group = frozenset(["config", *names])

    def decorate(function: Function) -> click.Command:
        def resolved(*, config: Path | None, **options: Any) -> None:
            flags = {name: options.pop(name) for name in names}

            def call() -> None:
                found = _resolved(resolve, flags, config)
                set_up_logging(found.log_level)
                function(found, **options)

            with_clear_errors(call, program)

        update_wrapper(resolved, function)  # with the options that were declared on it
        return click.command(
            cls=SettingsCommand,
            params=[*shared, help_all],
            shared=in_group,
            short_help=(function.__doc__ or "").strip().splitlines()[0],
            context_settings=STYLE,
        )(resolved)

    return decorate


def _option(setting: Setting) -> click.Option:
    kind: dict[str, Any] = {"metavar": setting.metavar}
    if setting.default is False:
        kind = {"is_flag": True, "default": None}
    default = f"  [default: {setting.default}]" if setting.default else ""
    text = f"{setting.help[0].upper()}{setting.help[1:]}.{default}"
    return click.Option([setting.flag, setting.name], help=text, **kind)


def version_option(program: str) -> Callable[[Function], Function]:
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


def _resolved(resolve: Callable[..., Any], flags: dict[str, Any], config: Path | None) -> Any:
    try:
        return resolve(flags, config=config)
    except OSError as error:  # such as a home of somebody else's, kept by sudo
        what = f"{error.filename} cannot be read: {error.strerror}"
        raise WrongSetting(f"{what}. Name the configuration with --config") from None


def with_clear_errors(call: Callable[[], None], program: str) -> None:
    """Turn what a user can correct into one message and an exit code."""
    try:
        call()
    except (ManifestError, ParameterError, UnknownValue) as error:
        fail(str(error), 2)
    except WrongSetting as error:
        text = error if program == "edge" else WrongSetting(error.what, "Nothing was changed")
        fail(str(text), error.exit_code)
    except AllomfreeError as error:
        fail(str(error), getattr(error, "exit_code", 1))
    except BrokenPipeError:
        raise  # whoever read our output has stopped; click ends quietly
    except (sqlite3.DatabaseError, OSError) as error:
        unsent = "Nothing new was drawn or sent. " if program == "edge" else ""
        see = f"{unsent}See: allomfree-{program} doctor"
        fail(f"the stored data cannot be used: {error}. {see}", 1)


def fail(message: str, code: int) -> None:
    """Print one message on standard error and exit; a command in it can be pasted."""
    lines = short(f"error: {completed(message)}", LONGEST_MESSAGE).split("\n")
    click.echo("\n".join(map(escaped, lines)), err=True)
    sys.exit(code)


def _unexpected(error: Exception) -> str:
    """Where it happened, for whoever fixes it; never what it says, which may be private."""
    frames = traceback.extract_tb(error.__traceback__)
    log.debug("%s", "".join(traceback.format_list(frames[-8:])))
    places = ", ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[-4:])
    where = f"{type(error).__name__} ({places})"
    return (
        f"a fault of this program, {where}. What was stored stays stored. Please report this line"
    )


def print_facts(facts: Facts, as_json: bool, text: Callable[[Facts], str]) -> None:
    """Print facts as JSON or as text of bounded lines."""
    if as_json:
        click.echo(output.as_json(facts))
    else:
        click.echo("\n".join(short(line, LONGEST_MESSAGE) for line in text(facts).split("\n")))
