"""The driver's protocol: a task a line, an answer a line, against peers whose answers are known."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import peer_environment
from benchmarks.peer_environment import PINS, PeerFailed, Peers, install, peers
from tests.support import benchmark_fakes as fakes

VALUES = [0, 0, 1, 2]
ROUND = {"oracle": "multi-freq-ldpy", "k": 4, "eps_inf": 2.0, "eps_1": 0.6, "seed": 1}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Peers]:
    np.save(tmp_path / "values.npy", np.array(VALUES))
    with peers(fakes.interpreter(tmp_path)) as started:
        yield started


@pytest.mark.parametrize(
    "task",
    [
        {"protocol": "L-OSUE"},
        {"protocol": "L-OSUE", "compiled": True},
        {"protocol": "L-GRR"},
        {"protocol": "LOLOHA", "best_cells": False},
        {"protocol": "LOLOHA", "best_cells": True},
        {"oracle": "pure-ldp", "protocol": "OUE"},
    ],
)
def test_both_halves_are_timed_and_the_estimate_comes_back(
    driver: Peers, tmp_path: Path, task: dict[str, Any]
) -> None:
    told = driver.ask(**{**ROUND, "values": str(tmp_path / "values.npy"), **task})
    assert told.keys() == {"randomise", "aggregate", "frequencies"}
    assert told["frequencies"] == [0.5, 0.25, 0.25, 0.0]
    assert told["randomise"] >= 0.0
    assert told["aggregate"] >= 0.0


def test_a_seed_gives_the_same_campaign_again(driver: Peers, tmp_path: Path) -> None:
    users = np.random.default_rng(1).integers(0, 3, (200, 2))
    np.save(tmp_path / "users.npy", users)
    task = {"oracle": "campaign", "sizes": [3, 3], "eps_inf": 2.0, "eps_1": 0.6}
    told = [
        driver.ask(**task, seed=seed, values=str(tmp_path / "users.npy"))["frequencies"]
        for seed in (1, 2, 1)
    ]
    assert told[0] == told[2] != told[1]
    assert [len(attribute) for attribute in told[0]] == [3, 3]
    assert all(sum(attribute) == pytest.approx(1.0) for attribute in told[0])


def test_versions_are_those_of_the_environment(driver: Peers) -> None:
    told = driver.versions()
    assert told == {
        "multi-freq-ldpy": "0.0.1",
        "pure-ldp": "0.0.2",
        "numba": "0.0.3",
        "numpy": np.__version__,
    }


def test_a_failing_peer_is_told_and_the_driver_lives(driver: Peers, tmp_path: Path) -> None:
    task = {**ROUND, "values": str(tmp_path / "values.npy")}
    with pytest.raises(PeerFailed, match="ValueError: five is too much"):
        driver.ask(**{**task, "protocol": "L-GRR", "k": 5})
    with pytest.raises(PeerFailed, match="KeyError"):
        driver.ask(**task, protocol="L-XYZ")
    assert driver.ask(**task, protocol="L-OSUE")


def test_an_environment_without_the_peers_is_named(tmp_path: Path) -> None:
    program = fakes.interpreter(tmp_path)
    shutil.rmtree(tmp_path / "multi_freq_ldpy")
    np.save(tmp_path / "values.npy", np.array(VALUES))
    with peers(program) as driver, pytest.raises(PeerFailed, match="No module named"):
        driver.ask(**ROUND, protocol="L-OSUE", values=str(tmp_path / "values.npy"))


def test_a_driver_that_dies_is_told(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with peers(program) as driver, pytest.raises(PeerFailed, match="exit status 3"):
        driver.versions()


def test_the_peers_do_not_inherit_where_our_packages_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nread task\necho "{\\"path\\": \\"$PYTHONPATH\\"}"\n')
    program.chmod(0o755)
    with peers(program) as driver:
        assert driver.ask() == {"path": ""}


# --- the environment -----------------------------------------------------------------------------


def test_every_package_is_pinned_and_both_peers_are_there() -> None:
    names = [pin.partition("==")[0] for pin in PINS]
    assert all(pin.partition("==")[2] for pin in PINS)
    assert set(peer_environment.PEERS) < set(names)
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_an_index_that_cannot_serve_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real environment and a real pip, which is told to look nowhere."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PeerFailed, match=r"nothing was compared:(.|\n)*--peer-python"):
        install(tmp_path / "venv", ("no-such-package==1",))
