"""Real agents on this machine, for a trial: they join, and report until two rounds are sealed.

    allomfree-collector open docs/examples/home-heat.toml --trial
    allomfree-collector run
    python scripts/trial_devices.py

Every value is drawn at random, some more often than others. The agents' state is deleted at the
end.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from random import Random

if find_spec("protocol_spec") is None:  # a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collector.brokers.choose import choose_broker
from collector.brokers.directory import BrokerDirectory
from collector.data_dir import read_store
from collector.health import examine
from collector.records import Campaign
from collector.settings import Settings, resolve
from protocol_spec import AllomfreeError, Attribute, is_trial
from testbed.agents import AgentProcesses, Readings

DEVICES = "how many; 100, or ALLOMFREE_TRIAL_DEVICES, unless given"


def main() -> None:
    parser = argparse.ArgumentParser(description="Real agents on this machine, for a trial.")
    usual = os.environ.get("ALLOMFREE_TRIAL_DEVICES", "100")
    parser.add_argument("--devices", type=int, default=usual, help=DEVICES)
    parser.add_argument("--rounds", type=int, default=2, help="rounds to wait for (default: 2)")
    parser.add_argument("--data-dir", type=Path, help="the collector's, unless the usual one")
    given = parser.parse_args()
    try:
        settings = resolve({"data_dir": given.data_dir})
        run(settings, found_trial(settings), given.devices, given.rounds)
    except (AllomfreeError, TimeoutError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("Ended; the agents' state is deleted.")


def found_trial(settings: Settings) -> Campaign:
    """The trial opened last that is still running."""
    if BrokerDirectory.exists(settings.broker_dir):
        raise TimeoutError(
            "the broker requires credentials (broker-config was run), which these devices do not "
            "have; nothing was started. Use another data directory: --data-dir trial"
        )
    with closing(read_store(settings.data_dir)) as store:
        running = [c for c in store.campaigns() if is_trial(c.manifest) and c.closed is None]
    running = [c for c in running if c.manifest.rounds.round_at(time.time()) is not None]
    if not running:
        raise TimeoutError(
            "no trial is open; nothing was started. Open one, or another after the last is over: "
            + command(settings, "open docs/examples/home-heat.toml --trial")
        )
    return running[-1]


def command(settings: Settings, words: str) -> str:
    """A command of the collector that can be pasted: on the same data."""
    usual = settings.data_dir == resolve({}).data_dir
    place = "" if usual else f" --data-dir {shlex.quote(str(settings.data_dir))}"
    return f"allomfree-collector {words}{place}"


def run(
    settings: Settings, campaign: Campaign, devices: int, rounds: int, start_seconds: float = 60.0
) -> None:
    """Join, report, and wait until `rounds` more rounds are sealed."""
    health = command(settings, "health")
    if not examine(settings.data_dir).well:
        print("Waiting for the collector. Start it in another terminal:", flush=True)
        print(f"    {command(settings, 'run')}", flush=True)
    start = f"the collector to run. See: {health}"
    wait_for(lambda: examine(settings.data_dir).well, start_seconds, start)
    known, _ = choose_broker(settings)
    schedule, random = campaign.manifest.rounds, Random()  # noqa: S311 - whose values are made up
    readings = {n: reading(campaign.manifest.attributes, random) for n in range(devices)}
    print(f"{devices} agents join {campaign.name}; rounds of {schedule.period} s.", flush=True)
    with (
        tempfile.TemporaryDirectory() as place,
        AgentProcesses(Path(place), campaign.manifest, str(known.broker), readings, 2),
    ):
        now = schedule.round_at(time.time())
        last = min(schedule.count if now is None else now + rounds, schedule.count) - 1
        left = schedule.deadline(last) - time.time()
        print(f"They report until round {last} is sealed, {left:.0f} s.", flush=True)
        limit = left + schedule.drain + 60
        end = f"the round to be sealed. See: {health}"
        wait_for(lambda: sealed(settings, campaign) >= last, limit, end)
    print(f"Look at it:  {command(settings, 'estimate --plot')}", flush=True)


def sealed(settings: Settings, campaign: Campaign) -> int:
    with closing(read_store(settings.data_dir)) as store:
        last = store.last_sealed(campaign.id)
    return -1 if last is None else last


def reading(attributes: tuple[Attribute, ...], random: Random) -> Readings:
    """A value of each attribute: the second one half as often as the first, and so on."""
    return {a.name: a.values[chosen(len(a.values), random)] for a in attributes}


def chosen(k: int, random: Random) -> int:
    return random.choices(range(k), [1 / (place + 1) for place in range(k)])[0]


def wait_for(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until done; TimeoutError after that many seconds."""
    limit = time.monotonic() + seconds
    while not done():
        if time.monotonic() > limit:
            raise TimeoutError(f"timed out waiting for {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
