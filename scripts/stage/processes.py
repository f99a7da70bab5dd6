"""A child process with its log in a file. It ends with its context, by its own process id."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from protocol_spec import AllomfreeError
from stage.programs import environment

LAST_LINES: Final = 5  # of a log, in an error message


class StageError(AllomfreeError, RuntimeError):
    """A program did not do its part; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How often to look, and how long to wait for a program to be ready and to stop."""

    poll_seconds: float = 0.1
    ready_seconds: float = 120.0
    stop_seconds: float = 15.0


DEFAULT_TIMING: Final = Timing()


class Process:
    """A program that is started, waited for, killed and started again."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        piped: bool = False,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.timing = timing
        self._piped = piped
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it; what it writes is appended to the log, or read from a pipe if it is piped."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE if self._piped else log,
                stderr=log,
                env=environment(),
                text=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._started().pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def stop(self) -> int | None:
        """Ask it to end, and kill it if it does not; returns its exit status if it was started."""
        if self._child is None:
            return None
        if self.is_running:
            self._child.terminate()
        try:
            self._child.wait(self.timing.stop_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        return self._ended()

    def kill(self) -> None:
        """kill -9."""
        self._started().kill()
        self._ended()

    def pause(self) -> None:
        """Stop it where it is, until `resume`."""
        self._started().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`; nothing happens if it has ended meanwhile."""
        self._started().send_signal(signal.SIGCONT)

    def read_line(self) -> str:
        """The next line of its standard output; waits for it, empty once the program has ended."""
        output = self._started().stdout
        return output.readline() if output is not None else ""

    def read_rest(self) -> str:
        """Ask it to end and return what it still writes to its standard output."""
        child = self._started()
        child.terminate()
        try:
            return child.communicate(timeout=self.timing.ready_seconds)[0]
        except subprocess.TimeoutExpired:
            raise self.error(f"timed out waiting for {self.name} to end") from None

    def wait_for(
        self, what: str, ready: Callable[[], bool], timeout_seconds: float | None = None
    ) -> None:
        """Until it is so; an error when the program ends first or it takes too long."""
        patience = self.timing.ready_seconds if timeout_seconds is None else timeout_seconds
        limit = time.monotonic() + patience
        while not ready():
            self.check_running()
            if time.monotonic() > limit:
                raise self.error(f"timed out waiting for {what}")
            time.sleep(self.timing.poll_seconds)

    def wait_for_log(self, text: str, *, times: int = 1) -> None:
        """Until the log has that text so often."""
        self.wait_for(f"{text!r} in the log", lambda: self.log_text().count(text) >= times)

    def check_running(self) -> None:
        """An error if it has ended."""
        if not self.is_running:
            raise self.error(f"{self.name} ended")

    def log_text(self) -> str:
        """Everything it has logged so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def error(self, what: str) -> StageError:
        """What went wrong, with the last lines of the log: its file may be temporary."""
        lines = self.log_text().splitlines()[-LAST_LINES:]
        return StageError("\n".join([f"{what}; the last lines of {self.log}:", *lines]))

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None:
            raise StageError(f"{self.name} was not started")
        return self._child

    def _ended(self) -> int:
        child = self._started()
        status = child.wait()
        if child.stdout is not None:
            child.stdout.close()
        return status
