"""What brokers cost is measured on real ones."""

from __future__ import annotations

from benchmarks.brokers import NODES, one_run, three_nodes


def test_three_nodes_keep_every_report_three_times() -> None:
    reports = 200
    cost = one_run(three_nodes, reports, k=5, visits=10, held=10)
    assert cost.bytes_on_disk > NODES * len("allomfree/v1/bench-00000000/dev/device-000/rep")
    assert cost.taking_microseconds > 0
    assert cost.handing_on_microseconds is not None
    assert cost.handing_on_microseconds > 0
    assert cost.visiting_microseconds > cost.taking_microseconds
