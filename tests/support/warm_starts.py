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
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO, Final

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
PRELOADED: Final = {
    "collector": (
        "collector.commands.collecting",
        "collector.service",
        "collector.brokers.choose",
        "collector.brokers.embedded",
    ),
    "edge_client": EDGE,
    "tests.support.collector_processes": (
        "collector.brokers.embedded",
        "collector.service",
        "tests.support.databases",
        "tests.support.edge_processes",
        "tests.support.network",
    ),
    "tests.support.agent_fleet": (*EDGE, "tests.support.edge"),
    "tests.support.edge_processes": (*EDGE, "tests.support.edge"),
}


def is_warm(command: Sequence[str], extra: Mapping[str, str] | None = None) -> bool:
    """Whether a command can be forked: a program of ours whose Python is not set up otherwise."""
    otherwise = any(name.startswith("PYTHON") for name in extra or ())
    ours = list(command[:2]) == [sys.executable, "-m"] and command[2] in PRELOADED
    return ours and not otherwise


class WarmProcess:
    """A process that runs, or ran; used as one of `subprocess` is."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        """With None for a file, it is ours; `subprocess.PIPE` is for `stderr` only."""
        self.returncode: int | None = None
        self.stderr: IO[bytes] | None = None
        self._words = command
        self._lock = threading.Lock()
        written = None
        if stderr == subprocess.PIPE:
            read, written = os.pipe()
            self.stderr = os.fdopen(read, "rb")
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {"words": list(command[2:]), "env": dict(env), "cwd": str(Path.cwd())}
        with Path(os.devnull).open("rb") as nothing, theirs:
            errors = written if written is not None else 2 if stderr is None else stderr
            files = [nothing.fileno(), 1 if stdout is None else stdout, errors, theirs.fileno()]
            _parent(command[2]).start(order, files)
        if written is not None:
            os.close(written)
        self._told.settimeout(PATIENCE_SECONDS)
        self.pid = int(self._told.recv(64))

    def poll(self) -> int | None:
        return self._end(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """How it ends: an exit code, or minus a signal."""
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(list(self._words), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                self._told.settimeout(timeout)
                try:
                    self.returncode = int(self._told.recv(64))
                except (TimeoutError, BlockingIOError):
                    return None
                self._told.close()
            return self.returncode


class _Parent:
    def __init__(self, module: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": PATHS, "OPENBLAS_NUM_THREADS": "1"},
            )
        Finalize(None, self.end, exitpriority=1)  # also where this process is a forked worker

    def start(self, order: Mapping[str, object], files: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._control, [json.dumps(order).encode()], files)

    def end(self) -> None:
        self._control.close()
        self._process.wait(PATIENCE_SECONDS)


@cache
def _parent(module: str) -> _Parent:
    return _Parent(module)


# --- the program -----------------------------------------------------------------------------


def _serve(control: socket.socket) -> list[str]:
    """Fork a child for every order; returns in children, with the words of their command."""
    running: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is woken:
                    woken.recv(64)
                    _tell_ends(running)
                    continue
                text, files, *_ = socket.recv_fds(control, LARGEST, 4)
                if not text:
                    sys.exit()
                *standard, reply = files
                pid = os.fork()
                if pid == 0:
                    for other in (control, woken, wakes, *running.values()):
                        other.close()
                    os.close(reply)
                    return _begin(json.loads(text), standard)
                for file in standard:
                    os.close(file)
                running[pid] = socket.socket(fileno=reply)
                running[pid].send(str(pid).encode())


def _tell_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as reply:
            reply.send(str(os.waitstatus_to_exitcode(status)).encode())


def _begin(order: dict[str, object], standard: Sequence[int]) -> list[str]:
    """Be the process that was asked for."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for place, file in enumerate(standard):
        os.dup2(file, place)
        os.close(file)
    env, words = order["env"], order["words"]
    assert isinstance(env, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(order["cwd"]))
    random.seed()
    return words


def _main(module: str, control: int) -> None:
    for name in PRELOADED[module]:
        import_module(name)
    words = _serve(socket.socket(fileno=control))
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
