from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from testbed.brokers import AS_OURSELVES, BROKERS, Broker, Mosquitto, Nats
from tests.support.brokers import Files
from tests.support.harness import QUICK_DISK, need
from tests.support.killable_agents import KillableAgents


@contextmanager
def started(name: str, directory: Path) -> Iterator[Broker]:
    """A real broker that keeps its sessions on the disk."""
    chosen = BROKERS[name](directory)
    if isinstance(chosen, Mosquitto):
        need("mosquitto")
        chosen.extra += f"{AS_OURSELVES}persistence true\npersistence_location {directory}/\n"
    with chosen as running:
        yield running


@contextmanager
def tls_broker(
    kind: str,
    files: Files,
    server: tuple[Path, Path],
    directory: Path,
    *,
    client_certificates: bool = False,
    password: str | None = None,
) -> Iterator[Broker]:
    """A real broker with this certificate; with a password it admits nobody but `device`."""
    (chain, key), ca = server, files.directory / "ca.pem"
    broker = BROKERS[kind](directory)
    if isinstance(broker, Mosquitto):
        need("mosquitto")
        broker.extra = (
            f"cafile {ca}\ncertfile {chain}\nkeyfile {key}\n"
            f"require_certificate {str(client_certificates).lower()}\n{AS_OURSELVES}"
            f"allow_anonymous {str(password is None).lower()}\n"
        )
        if password is not None:
            broker.extra += f"password_file {mosquitto_users(directory, 'device', password)}\n"
    elif isinstance(broker, Nats):
        verify = f'ca_file: "{ca}", verify: true' if client_certificates else ""
        broker.listener = f'tls {{ cert_file: "{chain}", key_file: "{key}", {verify} }}'
        if password is not None:
            user = f'{{ user: device, password: "{password}" }}'
            broker.extra = f"authorization {{ users: [ {user} ] }}"
    with broker as running:
        yield running


def mosquitto_users(directory: Path, user: str, password: str) -> Path:
    """A password file with one user."""
    salt = os.urandom(12)
    hashed = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    words = "$".join(b64encode(part).decode() for part in (salt, hashed))
    directory.mkdir(parents=True, exist_ok=True)
    users = directory / "users"
    users.write_text(f"{user}:$7$101${words}\n")
    users.chmod(0o600)
    return users


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own, in memory where possible."""
    with TemporaryDirectory(prefix="allomfree-", dir=QUICK_DISK) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def shared() -> Iterator[Path]:
    """A directory for what is started once."""
    with TemporaryDirectory(prefix="allomfree-", dir=QUICK_DISK) as name:
        yield Path(name)


@pytest.fixture(scope="session", params=sorted(BROKERS, reverse=True))
def broker(request: pytest.FixtureRequest, shared: Path) -> Iterator[Broker]:
    """Each of the real brokers, started once: every test has a campaign of its own."""
    with started(request.param, shared / request.param) as running:
        yield running


@pytest.fixture(params=sorted(BROKERS, reverse=True))
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Each of the real brokers, for a test that stops or kills it."""
    with started(request.param, tmp_path / "broker") as running:
        yield running


@pytest.fixture(scope="session")
def nats(shared: Path) -> Iterator[Nats]:
    """One for all tests: every test has a campaign of its own."""
    with Nats(shared / "plain-nats") as running:
        yield running


@pytest.fixture
def mosquitto(tmp_path: Path) -> Mosquitto:
    """mosquitto, not started yet."""
    need("mosquitto")
    return Mosquitto(tmp_path / "mosquitto")


@pytest.fixture(scope="session")
def agents(shared: Path) -> Iterator[KillableAgents]:
    """Runs agents, each in a process of its own that may kill itself."""
    with KillableAgents(shared / "agents.log") as running:
        yield running
