"""Commands that a program prints for its user to paste.

A command that is told to somebody works where it is told: it repeats the settings that this one was
given as flags, names the program by its path where the shell would not find it, and goes through
`sudo` where this one did.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

_COMMAND: Final = re.compile(r"\b(allomfree-[a-z]+) ([a-z]+(?:-[a-z]+)*)\b")


def typed(program: str, verb: str, *words: str, without: Collection[str] = ()) -> str:
    """A command line of this program; `without` are settings that need not be repeated."""
    context = click.get_current_context(silent=True)
    flags = [] if context is None else list(_flags(context, without))
    return " ".join([_started(program), verb, *words, *map(shlex.quote, flags)])


def completed(text: str) -> str:
    """The same for each command of this program that a text names, such as an error's."""
    context = click.get_current_context(silent=True)
    root = None if context is None else context.find_root().command
    if not isinstance(root, click.Group):
        return text

    def complete(found: re.Match[str]) -> str:
        ours = found[1] == root.name and found[2] in root.commands
        return typed(found[1], found[2]) if ours else found[0]

    return _COMMAND.sub(complete, text)


def _flags(context: click.Context, without: Collection[str]) -> Iterator[str]:
    """What was typed of the settings, which every command of a program takes."""
    shared: Collection[str] = getattr(context.command, "shared", ())
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in shared and name not in without and given:
            yield option.opts[0]
            if context.params[name] is not True:
                yield str(context.params[name])


def _started(program: str, environ: Mapping[str, str] = os.environ) -> str:
    """How the program was started: from the path or by its own, as another user or not."""
    file = Path(sys.argv[0])
    found = file.name == program and not shutil.which(program)
    name = shlex.quote(str(file)) if found else program
    return f"{_as_other_user(environ)}{name}"


def _as_other_user(environ: Mapping[str, str]) -> str:
    user = os.geteuid()
    if environ.get("SUDO_UID", str(user)) == str(user):
        return ""
    if user == 0:
        return "sudo "
    try:
        return f"sudo -u {shlex.quote(pwd.getpwuid(user).pw_name)} "
    except KeyError:
        return f"sudo -u '#{user}' "
