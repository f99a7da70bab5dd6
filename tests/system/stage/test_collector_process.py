"""The collector that the demonstration, the simulator and the benchmarks start."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import open_store
from protocol_spec import Topics
from simulation.depths.live import retimed
from simulation.model.messages import of_round
from stage.collector import CollectorProcess
from stage.processes import StageError, Timing
from stage.publisher import publish
from tests.support.simulation.campaigns import both, fleet
from tests.support.simulation.users import real_user


def test_it_counts_on_after_a_kill_and_hears_nothing_of_its_user_s_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in real_user(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    made = fleet(retimed(both(), rounds=1, period_seconds=3600, lead_seconds=0), 200)
    messages = list(of_round(made, 0, late=False))
    with closing(open_store(tmp_path / "data")) as store:
        store.open_campaign(made.manifest, made.manifest.created)
    with CollectorProcess(tmp_path / "data") as collector:
        collector.wait_until_connected()
        assert publish(collector.broker_url, messages[:90]) == 90
        collector.wait_until_received(90)
        before = collector.pid
        collector.kill_and_restart()
        assert collector.pid != before
        assert publish(collector.broker_url, messages[80:]) == 120
        collector.wait_until_received(210)
        with collector.store() as store:
            assert store.outcomes() == {"accepted": 200, "duplicate": 10}
        pid = collector.pid
    assert not collector.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_collector_that_ends_is_told_of_in_its_own_words(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (
        CollectorProcess(tmp_path, broker="not-a-broker") as collector,
        pytest.raises(StageError, match=r"the collector ended; .*\n(.|\n)*not-a-broker"),
    ):
        collector.wait_until_connected()


def test_waiting_too_long_says_for_what(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    nobody, hurried = "mqtt://127.0.0.1:1", Timing(ready_seconds=0.2)
    with (
        CollectorProcess(tmp_path, broker=nobody, timing=hurried) as collector,
        pytest.raises(StageError, match="timed out waiting for the collector to connect"),
    ):
        collector.wait_until_connected()


def test_a_broker_that_is_not_there_cannot_be_published_to() -> None:
    with pytest.raises(StageError, match=r"publishing to mqtt://127\.0\.0\.1:1 failed"):
        publish("mqtt://127.0.0.1:1", [(Topics("x-12345678").report("d"), b"")])
