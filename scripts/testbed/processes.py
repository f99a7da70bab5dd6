"""Child processes with their log in a file. Each ends with its context, by its own process id.

A user's configuration may name a real broker with its credentials. So a program started here gets
none of it: neither a variable nor a file, only what is in its command. Imports stay light, because
the agent's memory is measured in processes that import this module.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from protocol_spec import AllomfreeError, Manifest

SETTINGS: Final = ("ALLOMFREE_", "XDG_", "STATE_DIRECTORY", "NOTIFY_SOCKET")
LAST_LINES: Final = 5  # of a log, in an error message


class TestbedError(AllomfreeError, RuntimeError):
    """A program did not do its part; the message ends with the last lines of its log."""

    __test__ = False  # pytest would take the class for a test


def command_of(program: str, command: str, *words: str | Path) -> list[str]:
    """One of our commands, with an empty configuration in place of the user's."""
    path = Path(sys.executable).parent / program
    return [str(path), command, "--config", os.devnull, *map(str, words)]


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A child's variables: without the user's settings, and with these scripts on its path."""
    kept = {name: value for name, value in environ.items() if not name.startswith(SETTINGS)}
    path = filter(None, [str(Path(__file__).parent.parent), environ.get("PYTHONPATH")])
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def find_program(name: str) -> str | None:
    """A program next to the interpreter, on the path, or in /usr/sbin."""
    neighbour = Path(sys.executable).parent / name
    if neighbour.exists():
        return str(neighbour)
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


def need_program(name: str) -> str:
    if program := find_program(name):
        return program
    raise TestbedError(f"{name} is not installed")


def make_manifest(
    questions: Mapping[str, Sequence[str]],
    schedule: Mapping[str, int],
    *,
    protocol: str = "auto",
    asked: Mapping[str, str] = MappingProxyType({}),
    **settings: str | float | None,
) -> Manifest:
    """A campaign that asks for values by the attribute's name; the last one is for anything else.
    `schedule` has first, period, count and grace, `asked` the texts of questions; `settings`
    replace what is usual here."""
    usual = {"slug": "testbed", "title": "A trial", "purpose": "Try the programs out"}
    people = {"owner": "Nobody", "contact": "nobody@example.org"}
    top = {"format": 1, **usual, **people, "eps_inf": 2.0, "eps_1": 0.6, **settings}
    tables: list[tuple[str, Mapping[str, object]]] = [("", top), ("[rounds]", schedule)]
    for name, values in questions.items():
        question = {"name": name, "question": asked.get(name, f"Which {name}?")}
        answers = {"values": list(values), "otherwise": values[-1], "protocol": protocol}
        tables.append(("[[attributes]]", {**question, **answers}))
    lines = []
    for head, table in tables:
        known = {name: value for name, value in table.items() if value is not None}
        lines += [head, *(f"{n} = {json.dumps(v, ensure_ascii=False)}" for n, v in known.items())]
    return Manifest.from_toml("\n".join(lines))


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(port: int, address: str = "127.0.0.1") -> bool:
    try:
        with socket.create_connection((address, port), 5):
            return True
    except OSError:
        return False


def peak_memory_mib(pid: int | str = "self") -> float:
    """A process's largest resident size so far. Not `ru_maxrss`: that begins with the size of
    the parent, so a small child of a large parent would seem as large."""
    return _kibibytes(pid, "VmHWM") / 1024


def resident_bytes(pid: int) -> int:
    return _kibibytes(pid, "VmRSS") * 1024


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all its living threads together, to the nanosecond."""
    files = (thread / "schedstat" for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in files) / 1e9


def child_pids(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text(encoding="ascii").split()]


def _kibibytes(process: int | str, field: str) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


class Process:
    """A program that is started, waited for, killed and started again."""

    poll_seconds = 0.1
    ready_seconds = 120.0  # the longest to wait for something it does
    stop_seconds = 15.0  # before it is killed
    _child: subprocess.Popen[str] | None = None

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        piped: bool = False,
        own_settings: bool = False,
    ) -> None:
        """With `own_settings` it gets the user's own variables after all."""
        self.name = name
        self.command = list(command)
        self.log = log
        self._piped = piped
        self._own_settings = own_settings

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Its output is appended to the log, or read from a pipe if it is piped."""
        with self.log.open("ab") as log:
            output = subprocess.PIPE if self._piped else log
            self._child = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=log,
                env=None if self._own_settings else environment(),
                text=True,
            )

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def stop(self) -> int | None:
        """Ask it to end, and kill it if it does not; returns its exit status if it was started."""
        if self._child is None:
            return None
        if self.is_running:
            self._child.terminate()
        try:
            self._child.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        return self._ended()

    def kill(self) -> None:
        """kill -9."""
        self._started().kill()
        self._ended()

    def pause(self) -> None:
        """SIGSTOP, until `resume`."""
        self._started().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; nothing happens if it has ended meanwhile."""
        self._started().send_signal(signal.SIGCONT)

    def read_line(self) -> str:
        """The next line of its standard output; waits for it, empty once the program has ended."""
        output = self._started().stdout
        return output.readline() if output is not None else ""

    def ask_to_end(self) -> None:
        self._started().terminate()

    def read_rest(self) -> str:
        """Ask it to end and return the rest of its standard output."""
        self.ask_to_end()
        child = self._started()
        try:
            return child.communicate(timeout=self.ready_seconds)[0]
        except subprocess.TimeoutExpired:
            raise self.error(f"timed out waiting for {self.name} to end") from None

    def wait_for(
        self, what: str, ready: Callable[[], bool], timeout_seconds: float | None = None
    ) -> None:
        """Poll until `ready`; an error when the program ends first or it takes too long."""
        limit = time.monotonic() + (timeout_seconds or self.ready_seconds)
        while not ready():
            self.check_running()
            if time.monotonic() > limit:
                raise self.error(f"timed out waiting for {what}")
            time.sleep(self.poll_seconds)

    def check_running(self) -> None:
        if not self.is_running:
            raise self.error(f"{self.name} ended")

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def error(self, what: str) -> TestbedError:
        """What went wrong, with the last lines of the log: its file may be temporary."""
        lines = self.log_text().splitlines()[-LAST_LINES:]
        return TestbedError("\n".join([f"{what}; the last lines of {self.log}:", *lines]))

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None:
            raise TestbedError(f"{self.name} was not started")
        return self._child

    def _ended(self) -> int:
        child = self._started()
        status = child.wait()
        if child.stdout is not None:
            child.stdout.close()
        return status
