"""The oracle of the chaos command: it sees a loss, a double, and what nobody sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.device_key import DeviceKey
from collector.ingest.admit import OpenCampaigns
from collector.ingest.batch import count
from collector.mqtt import Message
from collector.rounds.sealing import seal
from collector.store import Store
from edge_client.timing import Timing
from faults.bulk import BulkDevices, Receipts
from faults.campaigns import bulk_manifest, bulk_name, bulk_report
from faults.oracle import Verdict, judge_bulk, judge_results
from faults.site import Loss
from protocol_spec import DEFAULT_NAMESPACE, Topics

DEVICES = 20
NOW = time.time()


class Scene:
    """One sealed round, in which some devices were counted."""

    def __init__(self, place: Path, counted: list[int]) -> None:
        place.mkdir(mode=0o700)
        first = int(NOW) - 1000
        self.manifest = bulk_manifest("scene", DEVICES, first, 10, 1)
        self.bulk = BulkDevices(self.manifest, DEVICES, Receipts(1, None), Timing())
        self.store: Store = open_store(place)
        self.campaign = self.store.open_campaign(self.manifest, first)
        topics = Topics(self.manifest.campaign)
        open_ones = {self.campaign.name: self.campaign}
        known = OpenCampaigns(
            open_ones, frozenset(), DeviceKey(place / "device.key"), DEFAULT_NAMESPACE
        )
        reports = [
            Message(topics.report(bulk_name(d)), bulk_report(self.manifest, 0, d)) for d in counted
        ]
        count(reports, self.store, known, first + 5)
        seal(self.store, self.campaign, 0, first + 100)

    def judge(self, *losses: Loss) -> Verdict:
        return judge_bulk(self.store, self.campaign, self.bulk, losses)


@pytest.fixture
def scene(tmp_path: Path) -> Callable[[list[int]], Scene]:
    def make(counted: list[int]) -> Scene:
        return Scene(tmp_path / "data", counted)

    return make


def test_all_is_well(scene: Callable[[list[int]], Scene]) -> None:
    made = scene(list(range(DEVICES)))
    made.bulk.answered |= {(0, device): NOW for device in range(DEVICES)}
    with closing(made.store):
        found = made.judge()
    assert (found.faults, found.owed, found.counted, found.unsure) == ([], DEVICES, DEVICES, 0)


def test_a_result_that_is_not_that_of_a_recount_is_seen(
    scene: Callable[[list[int]], Scene],
) -> None:
    made = scene(list(range(1, DEVICES)))
    with closing(made.store):
        assert judge_results(made.store, made.campaign, made.bulk, []) == []
        made.bulk.answered[0, 0] = NOW
        said = f"{made.campaign.name}, round 0: the result is not that of a recount"
        assert judge_results(made.store, made.campaign, made.bulk, []) == [said]


def test_a_report_that_the_broker_took_is_owed(scene: Callable[[list[int]], Scene]) -> None:
    made = scene(list(range(1, DEVICES)))
    made.bulk.answered[0, 0] = NOW
    with closing(made.store):
        assert made.judge().faults == [f"{made.campaign.name}, round 0: bulk-0 was lost"]


def test_a_report_with_a_receipt_is_owed_whatever_was_forgotten(
    scene: Callable[[list[int]], Scene],
) -> None:
    made = scene(list(range(1, DEVICES)))
    made.bulk.counted.add((0, 0))
    with closing(made.store):
        assert made.judge(Loss(NOW + 5)).faults == [
            f"{made.campaign.name}, round 0: bulk-0 was lost"
        ]


@pytest.mark.parametrize(
    ("loss", "owed"),
    [
        (Loss(NOW + 1, NOW + 2), False),
        (Loss(NOW - 1, NOW + 1), False),
        (Loss(NOW - 5), False),
        (Loss(NOW - 5, NOW - 1), True),
    ],
    ids=["forgotten after", "not subscribed yet", "never subscribed again", "long before"],
)
def test_what_a_broker_forgot_is_not_owed(
    scene: Callable[[list[int]], Scene], loss: Loss, owed: bool
) -> None:
    made = scene(list(range(1, DEVICES)))
    made.bulk.answered[0, 0] = NOW
    with closing(made.store):
        assert bool(made.judge(loss).faults) is owed


def test_what_nobody_sent_is_seen(scene: Callable[[list[int]], Scene]) -> None:
    made = scene([*range(2, DEVICES), DEVICES])  # the value that stands for everything else
    with closing(made.store):
        assert "nobody sent" in made.judge().faults[0]
