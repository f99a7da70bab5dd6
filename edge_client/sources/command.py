"""A value printed by a command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Any

from edge_client.errors import SourceFailure


@dataclass(frozen=True, slots=True)
class CommandSource:
    """`command = ["vcgencmd", "measure_temp"]`, run without a shell; its output is the value."""

    command: list[str]
    timeout: float = 10.0

    def __post_init__(self) -> None:
        words: Any = self.command  # from the configuration: it may be anything
        if not (isinstance(words, list) and words and all(isinstance(w, str) for w in words)):
            raise ValueError('command must be a list of words, as in ["cat", "/etc/hostname"]')
        seconds: Any = self.timeout
        if not (isinstance(seconds, int | float) and 0 < seconds <= 3600):
            raise ValueError("timeout must be a number of seconds, at most 3600")

    def read(self) -> object:
        """What the command prints, without the blanks around it."""
        program = self.command[0]
        try:
            done = subprocess.run(  # noqa: S603 - the owner's own command, no shell
                self.command,
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
