"""A credential is taken back while the broker runs: at once, from one device, and from no other."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.brokers.config import COLLECTOR
from collector.data_dir import open_store, read_store
from tests.support.brokers import BOTH, PASSWORDS, ROOT, ConfiguredBroker, Guest, Setup, users_of
from tests.support.command_line import Cli
from tests.support.edge_processes import wait_until

STOLEN, GARDEN = "stolen", "garden"


@pytest.fixture(params=BOTH)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConfiguredBroker]:
    """A running broker, in the directory of a collector that is not."""
    data = tmp_path / "data"
    open_store(data).close()
    with ConfiguredBroker(request.param, data / "broker", STOLEN, GARDEN) as running:
        wait_until((data / "broker" / "broker.pid").exists)
        yield running


def say(cli: Cli, broker: ConfiguredBroker, *words: object) -> dict[str, object]:
    done = cli(*words, "--data-dir", broker.directory.parent, "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def revoked(broker: ConfiguredBroker) -> frozenset[str]:
    store = read_store(broker.directory.parent)
    try:
        return store.revoked()
    finally:
        store.close()


def gets_in(broker: ConfiguredBroker, name: str) -> bool:
    guest = broker.guest(name)
    entered = guest.enter()
    guest.leave()
    return entered


def is_heard(guest: Guest, name: str, witness: Guest, other: Guest) -> bool:
    """Whether what a guest reports gets through, seen once another's later report has."""
    word = guest.say(f"{ROOT}/up/{name}/report") if not guest.lost else b"nothing"
    assert witness.hears(other.say(f"{ROOT}/up/{GARDEN}/report"))
    return word in witness.words


def test_revoke_and_undo(cli: Cli, broker: ConfiguredBroker) -> None:
    up = f"{ROOT}/up/{STOLEN}/report"
    with (
        broker.guest(COLLECTOR) as collectors,
        broker.guest(GARDEN) as garden,
        broker.guest(STOLEN) as stolen,
    ):
        collectors.listen("allomfree/v1/+/up/+/report")
        stolen.listen("allomfree/v1/+/pub/#")
        garden.listen("allomfree/v1/+/pub/#")
        assert collectors.hears(stolen.say(up))
        told = say(cli, broker, "revoke", STOLEN)
        assert (told["revoked"], told["enrolled"], told["reloaded"]) == (True, True, True)
        assert revoked(broker) == {STOLEN}, "the collector refuses its reports, too"
        wait_until(lambda: not is_heard(stolen, STOLEN, collectors, garden))
        news = collectors.say(f"{ROOT}/pub/state")
        assert garden.hears(news)
        assert not is_heard(stolen, STOLEN, collectors, garden)
        assert news not in stolen.words
        assert not gets_in(broker, STOLEN)
        assert not collectors.lost
        assert not garden.lost
    told = say(cli, broker, "revoke", STOLEN, "--undo")
    assert (told["revoked"], told["enrolled"], told["reloaded"]) == (False, True, True)
    assert revoked(broker) == frozenset()
    wait_until(lambda: gets_in(broker, STOLEN))
    with broker.guest(COLLECTOR) as collectors, broker.guest(STOLEN) as welcome:
        collectors.listen("allomfree/v1/+/up/+/report")
        assert collectors.hears(welcome.say(up))


def test_enrolment_while_the_broker_runs(cli: Cli, broker: ConfiguredBroker) -> None:
    with broker.guest(GARDEN) as garden:
        assert say(cli, broker, "enrol", "late")["reloaded"] is True
        wait_until(lambda: gets_in(broker, "late"))
        garden.say(f"{ROOT}/up/{GARDEN}/report")
        assert not garden.lost


@pytest.mark.parametrize("broker", PASSWORDS, indirect=True)
def test_a_broker_that_is_not_there_must_be_told_later(cli: Cli, broker: ConfiguredBroker) -> None:
    """Also when its process number now belongs to something else, which a signal would end."""
    broker.kill()
    assert say(cli, broker, "revoke", STOLEN)["reloaded"] is False
    with subprocess.Popen(["sleep", "60"]) as other:
        (broker.directory / "broker.pid").write_text(str(other.pid))
        told = cli("revoke", STOLEN, "--data-dir", broker.directory.parent)
        later = {
            "nats": "The broker uses it from its next start: allomfree-collector run",
            "mosquitto": "The broker must reload its configuration: send",
        }
        assert later[broker.setup.kind] in told.stdout
        other.terminate()
        assert other.wait(20) == -signal.SIGTERM
    broker.start()
    assert not gets_in(broker, STOLEN)
    assert gets_in(broker, GARDEN)


def test_a_device_that_was_never_enrolled(cli: Cli, tmp_path: Path) -> None:
    """Its reports are refused; but it may be a typing error, and that is said."""
    data = tmp_path / "data"
    open_store(data).close()
    nobody = cli("revoke", "nobody", "--data-dir", data)
    assert "No device nobody was enrolled here: whoever runs the broker" in nobody.stdout
    ConfiguredBroker(Setup("mosquitto", "password"), data / "broker", "strange")
    for name in ("stranger", "collector"):
        told = cli("revoke", name, "--data-dir", data)
        assert told.exit_code == 0
        assert f"But NO DEVICE {name} was enrolled here." in told.stdout
        assert ("Did you mean strange?" in told.stdout) == (name == "stranger")
        undo = told.stdout.splitlines()[-1].split()
        assert "no longer revoked" in cli(*undo[1:]).stdout, "it can be pasted"
        assert cli(*undo[1:]).stdout == f"{name} was not revoked; nothing was changed.\n"
    assert not any(user["revoked"] for user in users_of(data / "broker").values())
