"""A cluster on this machine: three NATS nodes with TLS, as `broker-config` writes them, PostgreSQL,
and workers. Every node has an address of its own on loopback (127.0.0.1, 127.0.0.2, 127.0.0.3).
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from collector.brokers.directory import BrokerDirectory
from collector.data_dir import read_store
from collector.health import examine
from collector.store import Store
from stage.collector import NO_PAGE, CollectorProcess, collector_command
from stage.postgres import PostgresProcess
from stage.processes import Process, StageError
from stage.programs import environment, find_program, free_port, is_open

NODES: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
KEEPALIVE_SECONDS: Final = "10"
KEY: Final = "device.key"


class Node(Process):
    """One nats-server, started in its directory."""

    def __init__(self, address: str, directory: Path, port: int) -> None:
        self.address = address
        self._port = port
        program = find_program("nats-server")
        if program is None:
            raise StageError("nats-server is not installed")
        command = ["env", "-C", str(directory), program, "-c", "nats.conf"]
        super().__init__(f"node {address}", command, directory / "log")

    @property
    def url(self) -> str:
        """Where it speaks MQTT."""
        return f"mqtts://{self.address}:{self._port}"

    def start(self) -> None:
        """Start it, and return once it listens; its part in the cluster may take longer."""
        self.begin()
        self.wait_for(f"{self.name} to listen", self.listens)

    def begin(self) -> None:
        """Start it, and do not wait."""
        super().start()

    def listens(self) -> bool:
        """Whether it takes connections."""
        return is_open(self._port, self.address)


class WorkerProcess(CollectorProcess):
    """One of several workers."""

    def __init__(
        self, data: Path, database: PostgresProcess, flags: Sequence[str], node: str, page: str
    ) -> None:
        self._database = database
        listen = NO_PAGE if not page else ("--listen", page)
        log = data.with_suffix(".log")
        super().__init__(data, *listen, *database.flags(), *flags, broker=node, log=log)

    @property
    def leads(self) -> bool:
        """Whether it leads, by its last word."""
        health = examine(self.data)
        return health.well and health.beat is not None and health.beat.status.leads

    def run(self, command: str, *words: str | Path) -> str:
        return super().run(command, *words, *self._database.flags())

    @contextmanager
    def store(self) -> Iterator[Store]:
        opened = read_store(self.data, self._database.address())
        try:
            yield opened
        finally:
            opened.close()


class Cluster:
    """Nodes, database and workers. They end with the context, paused or not."""

    def __init__(
        self,
        work: Path,
        *,
        workers: int = 3,
        page: str = "",
        prepare: Callable[[Cluster], None] = lambda _: None,
    ) -> None:
        _check_addresses()
        work.mkdir(parents=True, exist_ok=True)
        work.chmod(0o711)  # the database's user, if another, has to enter
        self.work = work
        self.broker_data = work / "broker-config"
        self.port, self.stream_port = free_port(), free_port()
        self._cluster_port = free_port()
        self.database = PostgresProcess(work / "database")
        self.nodes: list[Node] = []
        self.workers: list[WorkerProcess] = []
        self._wanted = workers
        self._prepare = prepare  # what is done to the nodes' files before they start
        self._page = page
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
        """Every process of the cluster."""
        return [*self.workers, *self.nodes, self.database]

    @property
    def broker(self) -> BrokerDirectory:
        """What was configured."""
        return BrokerDirectory.load(self.broker_data / "broker")

    @property
    def authority(self) -> Path:
        """Whom clients must trust."""
        return self.broker.path / "tls" / "ca.crt"

    def resume_all(self) -> None:
        """Nobody may be left paused: who is cannot end."""
        for process in self.everything:
            if process.is_running:
                process.resume()

    def configure(self) -> None:
        """Write the nodes' directories, by the command that a person would use."""
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

    def command(self, *words: str) -> str:
        """A command about the broker."""
        done = subprocess.run(
            collector_command(self.broker_data, *words),
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise StageError(f"{words[0]} failed: {done.stderr.strip()}")
        return done.stdout

    def start_workers(self) -> None:
        """The first makes the device key, and the others get it."""
        for number in range(self._wanted):
            made = self._worker(number)
            made.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.workers:
                shutil.copy(self.workers[0].data / KEY, made.data / KEY)
            self._stack.enter_context(made)
            self.workers.append(made)
            made.wait_until_connected()

    def leader(self) -> WorkerProcess | None:
        """The worker that leads now, if one does."""
        return next((worker for worker in self.workers if worker.is_running and worker.leads), None)

    def _worker(self, number: int) -> WorkerProcess:
        secret = self.broker.credentials_dir("Collector")
        streams = ",".join(f"tls://{node}:{self.stream_port}" for node in NODES)
        flags = (
            "--stream", streams, "--username", "Collector", "--keepalive", KEEPALIVE_SECONDS,
            "--password-file", str(secret / "password"), "--ca-file", str(secret / "ca.crt"),
            "--broker-dir", str(self.broker.path),  # whose auditor limits what devices can store
        )  # fmt: skip
        data = self.work / f"worker-{number}"
        node = self.nodes[number % len(self.nodes)].url
        return WorkerProcess(data, self.database, flags, node, self._page if number == 0 else "")


def _check_addresses() -> None:
    for address in NODES:
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                raise StageError(
                    f"this machine has no address {address}, which one of three nodes would use; "
                    "Linux has it, elsewhere give it to the loopback interface. Nothing was started"
                ) from None
