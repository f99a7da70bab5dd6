"""A value printed by a command.

The command gets a small environment of its own: what this process was given (a broker's password,
the service manager's socket and credentials) is no business of a program that reads a sensor.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edge_client.errors import SourceFailure

PASSED_ON: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR")
OURS: Final = "ALLOMFREE_"


@dataclass(frozen=True, slots=True)
class CommandSource:
    """`command = ["vcgencmd", "measure_temp"]`, run without a shell; its output is the value."""

    command: list[str]
    timeout: float = 10.0
    environment: Sequence[str] = ()

    def __post_init__(self) -> None:
        words: Any = self.command  # from the configuration: it may be anything
        if not (isinstance(words, list) and words and all(isinstance(w, str) for w in words)):
            raise ValueError('command must be a list of words, as in ["cat", "/etc/hostname"]')
        seconds: Any = self.timeout
        if not (isinstance(seconds, int | float) and 0 < seconds <= 3600):
            raise ValueError("timeout must be a number of seconds, at most 3600")
        names: Any = self.environment
        if not (isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)):
            raise ValueError('environment must be a list of names, as in ["DISPLAY"]')
        if any(name.startswith(OURS) for name in names):
            raise ValueError(f"environment: {OURS}* is for the agent alone and is not passed on")

    def read(self) -> object:
        """What the command prints, without the blanks around it."""
        program = self.command[0]
        try:
            done = subprocess.run(  # noqa: S603 - the owner's own command, no shell
                self.command,
                env=passed_on(os.environ, self.environment),
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=self.timeout,
                check=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            what = f"took longer than {self.timeout:g} s"
        except subprocess.CalledProcessError as error:
            what = f"ended with code {error.returncode}"
        except (OSError, ValueError) as error:
            what = f"could not be run ({type(error).__name__})"
        else:
            if done.stdout.strip():
                return done.stdout.strip()
            what = "printed nothing"
        raise SourceFailure(f"the command {program!r} {what}; nothing was drawn or sent") from None


def passed_on(environ: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """Where programs and the user's home are, language and time zone, and what the owner names."""
    return {
        name: value
        for name, value in environ.items()
        if name in PASSED_ON or name in named or name.startswith("LC_")
    }
