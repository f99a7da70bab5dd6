"""`ingest --readers`: a real broker, the real collector with its page, and readers of it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.campaign import manifest
from benchmarks.page_readers import addresses
from benchmarks.readers import DAY_SECONDS, Arm, drain, measure, one_run, past_round
from collector.data_dir import open_store
from collector.records import Candidate
from stage.collector import CollectorProcess
from tests.support.simulation.users import real_user

COUNT = 2_000


@pytest.mark.slow
def test_everything_is_counted_and_every_page_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in real_user(tmp_path).items():
        monkeypatch.setenv(name, value)
    arm = one_run(COUNT, k=5, readers=len(addresses(manifest(5))))
    assert arm.per_second > 0
    assert arm.ingest_cpu_seconds > 0
    assert arm.failures == 0
    assert arm.refreshes >= 1
    assert arm.slowest_seconds > 0


def test_the_arms_are_compared_pair_by_pair() -> None:
    slower = iter([90.0, 40.0, 80.0])

    def arm(count: int, k: int, number: int) -> Arm:
        assert (count, k) == (COUNT, 5)
        return Arm(next(slower) if number else 100.0, 2.0 if number else 1.0, 0.5, number, 0, 0.1)

    rows = {row.what: row for row in measure(COUNT, 3, 5, readers=10, run=arm)}
    kept = rows["ingest with readers / without"]
    assert (kept.value, kept.low, kept.high) == (0.8, 0.4, 0.9)
    assert kept.verdict == "BROKEN"  # a fall of 20 in 100, where 10 are allowed
    assert rows["CPU time of ingest with readers / without"].value == 2.0
    assert rows["pages that readers got"].value == 30
    assert rows["pages that failed"].verdict == "ok"


def test_reports_that_all_came_at_once_have_the_rate_since_the_first_look(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    asked = manifest(5, begun_seconds=DAY_SECONDS + 60)
    past_round(tmp_path, asked)
    with closing(open_store(tmp_path)) as store:
        (campaign,), body = store.campaigns(), bytes(asked.body_formats[0].length)
        store.commit([Candidate(campaign.id, 1, i, 0, 0, i, body) for i in range(7)], [])
    began = time.perf_counter()
    assert drain(CollectorProcess(tmp_path), 7) >= 7 / (time.perf_counter() - began)
