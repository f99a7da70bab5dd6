"""Programs of ours as processes of their own, without importing everything again for each.

Half a second of every start of a collector, and a fifth of one of an agent, goes into imports.
Here a parent for each program imports them once, opens nothing and starts no thread, and forks: so
every child begins like a freshly started program, has its own process id, environment, files and
end, and can be killed like any other. Only tests of starting itself have no use for it.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
PATHS: Final = f"{ROOT}{os.pathsep}{ROOT / 'scripts'}"
LARGEST: Final = 1 << 20  # bytes of an order: mostly the environment
PATIENCE_SECONDS: Final = 60.0
# What a program loads in the course of its commands, by the module that is run.
EDGE: Final = (
    "edge_client.client",
    "edge_client.cli.join",
    "edge_client.cli.report",
    "edge_client.cli.owner",
    "edge_client.daemon",
    "edge_client.link",
)
COLLECTOR: Final = ("collector.service", "collector.brokers.embedded")
PRELOADED: Final = {
    "collector": (*COLLECTOR, "collector.commands.collecting", "collector.brokers.choose"),
    "edge_client": EDGE,
    "tests.support.collector_processes": (*COLLECTOR, "tests.support.databases"),
    "tests.support.agents": (*EDGE, "tests.support.edge"),
}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would configure an agent."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ALLOMFREE_", "NOTIFY_"))}
    return {**kept, "PYTHONPATH": PATHS, **(extra or {})}


def start(
    command: Sequence[str],
    extra: Mapping[str, str] | None = None,
    *,
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes] | Forked:
    """Fork a program of ours, unless its Python is to be set up otherwise; start any other."""
    otherwise = any(name.startswith("PYTHON") for name in extra or ())
    if list(command[:2]) == [sys.executable, "-m"] and command[2] in PRELOADED and not otherwise:
        return Forked(command, environment(extra), stdout=stdout, stderr=stderr)
    return subprocess.Popen(
        command, env=environment(extra), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
    )


def run_command(
    command: Sequence[str], timeout: float = 60.0, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with TemporaryFile("w+b") as out, TemporaryFile("w+b") as err:
        process = start(command, extra, stdout=out.fileno(), stderr=err.fileno())
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(command, code, *texts)


def wait_until(done: Callable[[], bool], timeout: float = 30.0) -> None:
    """Poll for what gives no notification when it happens."""
    limit = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.01)


class Logged:
    """A program whose log is collected line by line. Ended by its own process id."""

    process: subprocess.Popen[bytes] | Forked

    def __init__(self, command: list[str], extra: Mapping[str, str] | None = None) -> None:
        self.command = command
        self.lines: list[dict[str, Any]] = []
        self._extra = extra
        self._logged = threading.Condition()

    def __enter__(self) -> Self:
        self.process = start(self.command, self._extra, stderr=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join(20)
        assert self.process.stderr
        self.process.stderr.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return "\n".join(line["message"] for line in list(self.lines))

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.wait_for_end()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def wait_for_end(self) -> int:
        """0, or minus the signal that killed it."""
        return self.process.wait(PATIENCE_SECONDS)

    def wait_for(self, text: str, *, times: int = 1, timeout: float = 40.0) -> None:
        """Until the text has been logged that often."""
        with self._logged:
            if not self._logged.wait_for(lambda: self.said(text) >= times, timeout):
                raise AssertionError(f"{text!r} is not in the log: {self.lines}")

    def said(self, text: str) -> int:
        """How many lines have the text so far."""
        return sum(text in line["message"] for line in list(self.lines))

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            try:
                fields = json.loads(line)
            except ValueError:  # not of the log: a traceback
                fields = {"message": line.decode(errors="replace")}
            with self._logged:
                self.lines.append(fields)
                self._logged.notify_all()


# --- forking --------------------------------------------------------------------------------------


class Forked:
    """A process that runs, or ran; used as one of `subprocess` is."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: int | None,
        stderr: int | None,
    ) -> None:
        """With None for a file, it is ours; `subprocess.PIPE` is for `stderr` only."""
        self.returncode: int | None = None
        self.stderr: IO[bytes] | None = None
        self._lock = threading.Lock()
        written = None
        if stderr == subprocess.PIPE:
            read, written = os.pipe()
            self.stderr = os.fdopen(read, "rb")
        errors = written if written is not None else 2 if stderr is None else stderr
        self._reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {"words": list(command[2:]), "env": dict(env), "cwd": str(Path.cwd())}
        with Path(os.devnull).open("rb") as nothing, theirs:
            files = [nothing.fileno(), 1 if stdout is None else stdout, errors, theirs.fileno()]
            socket.send_fds(_parent(command[2]), [json.dumps(order).encode()], files)
        if written is not None:
            os.close(written)
        self._reply.settimeout(PATIENCE_SECONDS)
        self.pid = int(self._reply.recv(64))

    def poll(self) -> int | None:
        with self._lock:
            return self._end(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """How it ends: an exit code, or minus a signal."""
        with self._lock:
            code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._reply.settimeout(timeout)
            try:
                self.returncode = int(self._reply.recv(64))
            except (TimeoutError, BlockingIOError):
                return None
            self._reply.close()
        return self.returncode


@cache
def _parent(module: str) -> socket.socket:
    """The socket for orders to the program below, which ends with this process."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": PATHS, "OPENBLAS_NUM_THREADS": "1"},
        )

    def end() -> None:
        control.close()
        process.wait(PATIENCE_SECONDS)

    Finalize(None, end, exitpriority=1)  # also where this process is a forked worker
    return control


def _serve(control: socket.socket) -> list[str]:
    """Fork for every order: a process that waits for the end of the program and tells it, and from
    that the program itself, in which this returns the words of its command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        text, files, *_ = socket.recv_fds(control, LARGEST, 4)
        if not text:
            sys.exit()
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    control.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, reply = files
    if pid := os.fork():
        for file in standard:
            os.close(file)
        with socket.socket(fileno=reply) as told:
            told.send(str(pid).encode())
            told.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os._exit(0)
    os.close(reply)
    for place, file in enumerate(standard):
        os.dup2(file, place)
        os.close(file)
    order = json.loads(text)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    random.seed()
    return list(order["words"])


def _main(module: str, control: int) -> None:
    for name in PRELOADED[module]:
        import_module(name)
    sys.argv = _serve(socket.socket(fileno=control))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
