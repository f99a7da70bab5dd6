"""`benchmark.py live` measures reports that are counted while they are published, each once."""

from __future__ import annotations

import pytest

from benchmarks.live import Effort, one_run
from benchmarks.workload import Embedded
from tests.support.harness import ROOT

pytestmark = pytest.mark.slow

WINDOW = 50


class Narrow(Embedded):
    """It lets few messages wait for the collector's acknowledgement. What it has to hold back
    because a session has more than that, it delivers half a minute later."""

    def configuration(self) -> str:
        usual = super().configuration()
        narrow = usual.replace("max_ack_pending: 20000", f"max_ack_pending: {WINDOW}")
        assert narrow != usual
        return narrow


def test_a_burst_larger_than_the_window_is_delivered_once() -> None:
    measured = one_run(Narrow, Effort(reports=20 * WINDOW, connections=4), checkout=ROOT)
    assert (measured.again, measured.unseen) == (0, 0)
    assert 0 < measured.p50 <= measured.p99
    assert min(measured.publishing, measured.counting) > 0
