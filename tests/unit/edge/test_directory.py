"""R22: the state is its owner's alone, whatever the umask; anything else is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_client.credentials import Remembered, RememberedCredentials
from edge_client.errors import StateExposed, StorageFailure
from edge_client.status import Heartbeat
from edge_client.store import Store
from edge_client.store.opening import STATE_FILES
from protocol_spec.programs.settings import parse_broker
from tests.support.edge import FakeClock, daily, draw, joined_agent


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o027, 0o077, 0o177, 0o777])
def test_modes_do_not_depend_on_the_umask(state: Path, clock: FakeClock, mask: int) -> None:
    state.parent.mkdir(exist_ok=True)
    with umask(mask):
        agent = joined_agent(state, clock, daily())
        draw(agent)
        Heartbeat(state).write("fine", 0)
        RememberedCredentials(state).remember(parse_broker("mqtts://b.example"), Remembered("me"))
        found = {path.name: mode(path) for path in state.iterdir()}
        agent.store.close()
    assert found == dict.fromkeys(STATE_FILES, 0o600)
    assert mode(state) == 0o700


@pytest.mark.parametrize("wrong", [0o640, 0o604, 0o660, 0o644, 0o620])
@pytest.mark.parametrize("name", STATE_FILES)
def test_a_file_that_others_can_use_is_refused(
    state: Path, clock: FakeClock, name: str, wrong: int
) -> None:
    agent = joined_agent(state, clock, daily())
    Heartbeat(state).write("fine", 0)
    agent.store.close()
    (state / name).touch()
    (state / name).chmod(wrong)
    with pytest.raises(StateExposed, match=f"mode {wrong:o}.*chmod 600 {state / name}"):
        Store(state, exclusive=True)
    (state / name).chmod(0o600)
    if not name.startswith("state.db-"):
        Store(state, exclusive=True).close()


@pytest.mark.parametrize("wrong", [0o755, 0o750, 0o701, 0o770])
def test_a_directory_that_others_can_enter_is_refused(state: Path, wrong: int) -> None:
    state.mkdir()
    state.chmod(wrong)
    with pytest.raises(StateExposed, match=f"mode {wrong:o}.*chmod 700 {state}"):
        Store(state, exclusive=True)
    assert not any(state.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_directory_is_refused(state: Path) -> None:
    state.mkdir(mode=0o700)
    os.chown(state, 12345, 12345)
    with pytest.raises(StateExposed, match="belongs to another user; nothing was drawn or sent"):
        Store(state, exclusive=True)


def test_a_file_in_the_place_of_the_directory_is_refused(state: Path) -> None:
    state.write_text("not a directory")
    with pytest.raises(StorageFailure, match=f"{state} cannot be used.*--state-dir"):
        Store(state, exclusive=True)
    with pytest.raises(StorageFailure, match="cannot be used"):
        Store(state / "below", exclusive=True)


def test_directories_above_are_made(tmp_path: Path) -> None:
    deep = tmp_path / "one" / "two" / "state"
    Store(deep, exclusive=True).close()
    assert mode(deep) == 0o700
