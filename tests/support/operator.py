"""What an operator types, run in this process: the same commands without starting a program."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import Result

from collector.commands import main
from tests.support.command_line import invoker


class Operator:
    """Types commands of `allomfree-collector` about one data directory."""

    def __init__(self, *flags: object) -> None:
        self._flags = flags
        self._invoke = invoker(main)

    def runs(self, *words: object) -> Result:
        """A command that ends well, and what it says."""
        done = self.tries(*words)
        assert done.exit_code == 0, done.output
        return done

    def tries(self, *words: object) -> Result:
        """A command, and how it ends."""
        return self._invoke(*words, *self._flags)

    def asks(self, *words: object) -> Any:
        """What a command says with --json."""
        return json.loads(self.tries(*words, "--json").stdout)


@contextmanager
def operator(*flags: object) -> Iterator[Operator]:
    """Commands set up signals and logs, which is undone afterwards."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Operator(*flags)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    logger = logging.getLogger("allomfree")
    logger.handlers, logger.propagate = [], True
