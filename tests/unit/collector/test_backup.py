"""Backups: whole and private, restored byte for byte, and never over anything that is there."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from collector import backup
from collector.brokers.config import BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.data_dir import DeviceKey, open_store, read_store
from collector.errors import CollectorError, NotABackup, StorageFailure
from collector.opening import OperatorKey
from collector.records import Campaign
from collector.settings import Settings, resolve
from tests.support.collector import FIRST, candidate, seal, three_questions
from tests.support.command_line import Cli, facts_of, mistaken


def settings_of(data: Path, **more: object) -> Settings:
    return resolve({"data_dir": str(data), **more}, config=Path(os.devnull), environ={})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Reports in a sealed and in an open round, every kind of key, and a broker with a device."""
    settings = settings_of(tmp_path_factory.mktemp("original") / "data")
    with closing(open_store(settings.data_dir)) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        for number in range(2):
            store.commit([candidate(campaign, device, number) for device in range(9)], [])
        seal(store, campaign, 0)
    DeviceKey(settings.data_dir / "device.key")
    OperatorKey(settings.data_dir).create()
    (settings.data_dir / "session").write_text("coll-abc")
    plan = BrokerPlan("nats", "allomfree", ("localhost",), settings.broker_dir.absolute())
    BrokerDirectory.configure(settings.broker_dir, plan).enrol(["kitchen"])
    (settings.broker_dir / "broker.log").write_text("the broker's own")
    return settings


@pytest.fixture(scope="module")
def whole(original: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup to be copied, not changed."""
    place = tmp_path_factory.mktemp("whole") / "backup"
    backup.make(original, place)
    return place


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def counted(directory: Path) -> list[object]:
    with closing(read_store(directory)) as store:
        (campaign,) = store.campaigns()
        sealed = [repr(result) for result in store.results(campaign.id)]
        return [store.received(), store.outcomes(), campaign, sealed, store.tallies(campaign.id, 1)]


def test_what_is_restored_is_what_was_backed_up(
    tmp_path: Path, original: Settings, target: Path
) -> None:
    """Except the broker's queue, log and lock. Files of a broker name its new directory."""
    made = backup.make(original, target)
    assert (made.received, made.enrolled) == (18, 1)
    again = settings_of(tmp_path / "again", broker_dir=str(tmp_path / "elsewhere"))
    assert backup.restore(again, target) == made
    for name in ("device.key", "operator.key", "session"):
        assert (again.data_dir / name).read_bytes() == (original.data_dir / name).read_bytes()
    assert repr(counted(again.data_dir)) == repr(counted(original.data_dir))
    before, after = (BrokerDirectory.load(s.broker_dir) for s in (original, again))
    assert (after.users, after.authority_digest) == (before.users, before.authority_digest)
    assert after.plan.root == tmp_path / "elsewhere"
    old = str(original.data_dir).encode()
    assert not [name for name, text in files(tmp_path / "elsewhere").items() if old in text]
    assert not (again.data_dir / "broker").exists()
    names = {name for name in files(target) if name.startswith("broker/")}
    assert names >= {"broker/broker.json", "broker/invitations/kitchen.invitation"}
    assert not names & {"broker/broker.log", "broker/lock", "broker/nats.conf"}
    with closing(open_store(again.data_dir)) as store:
        assert store.received() == 18


def test_everything_is_private_whatever_the_umask_and_secrets_can_be_kept_apart(
    tmp_path: Path, original: Settings, target: Path
) -> None:
    secrets = tmp_path / "secrets"
    before = os.umask(0)
    try:
        backup.make(original, target, secrets)
        backup.restore(settings_of(tmp_path / "again"), target, secrets)
    finally:
        os.umask(before)
    for place in (target, secrets, tmp_path / "again"):
        for path in (place, *place.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path
    assert files(target).keys() == {"collector.db", "backup.json"}
    key = (original.data_dir / "device.key").read_bytes()
    assert not [name for name, text in files(target).items() if key in text]
    with pytest.raises(NotABackup, match="name its directory with --secrets"):
        backup.checked(target)
    assert backup.checked(target, secrets).received == 18
    with pytest.raises(CollectorError, match="names the same directory"):
        backup.make(original, tmp_path / "other", tmp_path / "other")


def test_a_collector_that_has_counted_nothing_has_no_key_yet(tmp_path: Path, target: Path) -> None:
    settings = settings_of(tmp_path / "data")
    open_store(settings.data_dir).close()
    made = backup.make(settings, target)
    assert (made.received, made.secrets, made.broker) == (0, {}, "")
    backup.restore(settings_of(tmp_path / "again"), target)


def test_postgresql_is_left_to_its_own_tools(tmp_path: Path, target: Path, whole: Path) -> None:
    shared = settings_of(tmp_path / "data", store="postgresql://allomfree@db.example/allomfree")
    with pytest.raises(CollectorError, match=r"nothing was changed. Use pg_dump and pg_restore"):
        backup.make(shared, target)
    with pytest.raises(CollectorError, match="pg_restore"):
        backup.restore(shared, whole)
    assert not target.exists()


def test_a_backup_needs_an_empty_private_directory_and_enough_space(
    original: Settings, target: Path
) -> None:
    with pytest.raises(StorageFailure, match=r"MB are needed and 0\.0 MB are free"):
        backup.make(original, target, free=lambda _: 10)
    assert not target.exists()
    target.mkdir(mode=0o755)
    with pytest.raises(StorageFailure, match=f"chmod 700 {target}"):
        backup.make(original, target)
    assert list(target.iterdir()) == []
    target.chmod(0o700)
    for place in (target / "precious", target):
        (target / "precious").write_text("precious")
        with pytest.raises(CollectorError, match=r"is not empty; nothing was written"):
            backup.make(original, place)
        assert files(target) == {"precious": b"precious"}


def test_a_disk_that_fills_up_leaves_nothing_behind(
    original: Settings, whole: Path, small_disk: Path
) -> None:
    """A real one of a megabyte, which another program fills after the space was checked."""
    filler = small_disk / "filler"

    def fill(_: Path) -> int:
        filler.write_bytes(bytes(880_000))
        return 1 << 30

    with pytest.raises(StorageFailure, match=r"(disk is full|No space left).*were removed"):
        backup.make(original, small_disk / "backup", free=fill)
    assert list(small_disk.iterdir()) == [filler]
    filler.write_bytes(bytes(950_000))
    again = settings_of(small_disk / "again")
    with pytest.raises(StorageFailure, match=r"No space left on device\. Files written so far we"):
        backup.restore(again, whole)
    assert {path.name for path in again.data_dir.iterdir()} <= {"lock"}
    filler.unlink()
    assert backup.restore(again, whole).received == 18


@pytest.mark.parametrize("name", ["collector.db", "device.key", "x", "broker/broker.json"])
def test_nothing_is_ever_overwritten(tmp_path: Path, whole: Path, name: str) -> None:
    again = settings_of(tmp_path / "again")
    (again.data_dir / name).parent.mkdir(parents=True, mode=0o700)
    (again.data_dir / name).write_text("precious")
    with pytest.raises(CollectorError, match="nothing is ever overwritten"):
        backup.restore(again, whole)
    assert files(again.data_dir) == {name: b"precious"}
    new = settings_of(tmp_path / "new", broker_dir=str((again.data_dir / name).parent))
    with pytest.raises(CollectorError, match="--broker-dir"):
        backup.restore(new, whole)
    assert not new.data_dir.exists()


def changed_list(target: Path, **values: object) -> None:
    listed = json.loads((target / "backup.json").read_text())
    (target / "backup.json").write_text(json.dumps({**listed, **values}))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def of_a_newer_version(target: Path) -> None:
    with closing(sqlite3.connect(target / "collector.db")) as db:
        db.execute("PRAGMA user_version = 99")
    changed_list(target, files={"collector.db": backup.digest_of(target / "collector.db")})


def damaged_before_it_was_listed(target: Path) -> None:
    content = bytearray((target / "collector.db").read_bytes())
    content[4096:4300] = os.urandom(204)
    (target / "collector.db").write_bytes(content)
    changed_list(target, files={"collector.db": backup.digest_of(target / "collector.db")})


def listed_as_it_is(target: Path, name: str) -> None:
    """Whoever can change a file can change the list."""
    secrets = json.loads((target / "backup.json").read_text())["secrets"]
    changed_list(target, secrets={**secrets, name: backup.digest_of(target / name)})


def smuggle(**changes: object) -> Callable[[Path], object]:
    """A plan of the broker, whose values go into its configuration."""

    def spoil(target: Path) -> None:
        file = target / "broker/broker.json"
        stored = json.loads(file.read_text())
        users = changes.get("users", stored["users"])
        plan = {**stored["plan"], **{k: v for k, v in changes.items() if k != "users"}}
        file.write_text(json.dumps({**stored, "plan": plan, "users": users}))
        listed_as_it_is(target, "broker/broker.json")

    return spoil


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def spoil(target: Path) -> None:
        (target / "device.key").unlink()
        make(target / "device.key")

    return spoil


EVIL = "1883\nplugin evil.so"
FAULTS: list[tuple[str, Callable[[Path], object]]] = [
    *(
        ("broker.json cannot be used (SettingsError)", smuggle(**{name: value}))
        for name, value in (
            ("port", EVIL),
            ("port", True),
            ("stream_port", 70_000),
            ("cluster_port", None),
            ("kind", EVIL),
            ("auth", "none"),
            ("namespace", f"allomfree\n{EVIL}"),
            ("bind", 5),
            ("hosts", [5]),
            ("home_assistant", f"homeassistant\n{EVIL}"),
            ("campaigns", [f"a-00000000\n{EVIL}"]),
            ("users", [{"name": f"a\n{EVIL}", "role": "device", "password": "$7$x"}]),
            ("users", [{"name": "a", "role": "device", "password": f"$7$x\n{EVIL}"}]),
        )
    ),
    ("broker.json cannot be used (TypeError)", smuggle(users=[5])),
    ("is a link", replaced_by(lambda path: path.symlink_to("/etc/hostname"))),
    ("it is not a regular file", replaced_by(os.mkfifo)),
    ("is a link", replaced_by(lambda path: path.symlink_to("/dev/zero"))),
    (
        "is not a file of a backup",
        lambda target: changed_list(target, secrets={"broker/mosquitto.conf": ""}),
    ),
    ("is not the list of a backup", lambda t: (t / "backup.json").write_text("[" * 100_000)),
    ("has no backup.json", lambda target: (target / "backup.json").unlink()),
    ("is not the list of a backup", lambda target: (target / "backup.json").write_text("rubbish")),
    ("is not the list of a backup", lambda target: changed_list(target, files={"a": 1})),
    ("by a newer version of this program", lambda target: changed_list(target, format=2)),
    ("a newer version of this program made it", of_a_newer_version),
    ("cannot be used; nothing was restored", damaged_before_it_was_listed),
    ("does not hold what backup.json says", lambda target: changed_list(target, received=17)),
    ("names no collector.db", lambda target: changed_list(target, files={})),
    ("is not a file of a backup", lambda target: changed_list(target, secrets={"../x": ""})),
    ("is not a file of a backup", lambda target: changed_list(target, secrets={"/etc/passwd": ""})),
    ("it lacks device.key", lambda target: changed_list(target, secrets={}, broker="")),
    ("device.key is not as it was", lambda target: cut_short(target / "device.key")),
    ("collector.db is not as it was", lambda target: cut_short(target / "collector.db")),
    ("broker.json is missing", lambda target: (target / "broker/broker.json").unlink()),
]


@pytest.mark.parametrize(("message", "spoil"), FAULTS, ids=[message for message, _ in FAULTS])
def test_what_is_no_whole_backup_is_not_restored(
    tmp_path: Path, whole: Path, target: Path, message: str, spoil: Callable[[Path], object]
) -> None:
    shutil.copytree(whole, target)
    spoil(target)
    with pytest.raises(NotABackup) as refused:
        backup.restore(settings_of(tmp_path / "again"), target)
    assert message in str(refused.value)
    assert not (tmp_path / "again").exists()


def test_the_commands_back_up_and_restore(cli: Cli, home: Path, data: Path, used: Campaign) -> None:
    assert "no backup was made" in mistaken(cli, 1, "backup", home / "b", "--data-dir", data)
    assert not (home / "b").exists(), "there is no device key, and 180 messages"
    DeviceKey(data / "device.key")
    made = facts_of(cli("backup", home / "b", "--json", "--data-dir", data))
    assert made["made"] > 1_700_000_000
    assert (made["campaigns"], made["received"], made["files"]) == ([used.name], 180, 2)
    text = cli("restore", home / "b", "--check").stdout
    assert "is complete" in text
    assert text.endswith("Nothing was restored.\n")
    text = cli("restore", home / "b", "--data-dir", home / "again").stdout
    assert f"Restored to {home / 'again'}: {used.name}; 180 messages received; 2 files" in text
    assert "is lost: devices have their receipts" in text
