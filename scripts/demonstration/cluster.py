"""The demonstration on a cluster: everything that may fail does, and every device counts once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Self

from collector.records import Campaign
from demonstration.checks import Check
from demonstration.population import readings
from demonstration.rounds import LINE_SECONDS, POLL_SECONDS, progress
from demonstration.story import AGENTS_A_PROCESS, MOST_PROCESSES
from demonstration.strikes import Strike, Strikes, unless_down
from demonstration.telling import Pace, Telling
from testbed.agents import AgentProcesses
from testbed.collector import Cluster, CollectorProcess, is_sealed
from testbed.processes import TestbedError

QUICK_START_SECONDS: Final = 6.0  # in which nodes, database and workers run on an idle machine
LONGEST_SECONDS: Final = 300.0  # after the last deadline


class ClusterDemonstration(Telling):
    """Nodes, database, workers and agents."""

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        work.chmod(0o711)  # the database's user, if another, has to enter
        self._cluster = Cluster(work / "cluster", page=self.page)

    def __enter__(self) -> Self:
        self.stack.enter_context(self._cluster)
        return self

    @property
    def collector(self) -> CollectorProcess:
        """The worker with the page."""
        return self._cluster.workers[0]

    def run(self, devices: int, rounds: int, period_seconds: int | None) -> list[Check]:
        """Everything up to the results; returns what was checked."""
        self._start()
        pace = Pace.for_machine(self.slowness(QUICK_START_SECONDS), devices, period_seconds)
        self._enrol(devices)
        campaign = self.open(devices, rounds, pace, self._cluster.database.address())
        with self._agents(campaign, devices) as agents:
            self.say("every agent has drawn one attribute for life")
            strikes = Strikes(self._cluster, self.say)
            schedule = campaign.manifest.rounds
            struck = min(1, schedule.count - 1)
            self._watch(campaign, devices, strikes.plan(schedule.opens(struck), schedule.period))
            agents.stop()
        self.say("all rounds are sealed")
        return self.finish(campaign, agents, "workers")

    def _start(self) -> None:
        nodes = ", ".join(node.address for node in self._cluster.nodes)
        self.say(f"three broker nodes run, with TLS ({nodes}), and PostgreSQL")
        self._cluster.start_workers()
        self.say("three workers count; one of them leads")
        self.say(f"watch it live: http://{self.page}/")

    def _enrol(self, devices: int) -> None:
        self._cluster.enrol([f"device-{number}" for number in range(devices)])
        self.say(f"enrolled {devices} devices, each with a password of its own")

    def _agents(self, campaign: Campaign, devices: int) -> AgentProcesses:
        self.say(f"starting {devices} agents, a third of them at each node")
        return AgentProcesses(
            self.work / "devices",
            campaign.manifest,
            [node.url for node in self._cluster.nodes],
            readings(campaign.manifest, devices),
            max(3, min(MOST_PROCESSES, -(-devices // AGENTS_A_PROCESS))),
            credentials=self._cluster.broker.path / "credentials",
        )

    def _watch(self, campaign: Campaign, devices: int, strikes: list[Strike]) -> None:
        limit = campaign.manifest.rounds.end + LONGEST_SECONDS
        shown, next_line = "", 0.0
        while strikes or not self._is_over(campaign):
            line = next(unless_down(lambda: self._progress(campaign, devices)), shown)
            if line != shown and time.monotonic() >= next_line:
                shown, next_line = line, time.monotonic() + LINE_SECONDS
                self.say(line)
            if strikes and time.time() > strikes[0].at:
                strikes.pop(0).do()
            if time.time() > limit:
                raise TestbedError(
                    f"not all rounds are sealed {LONGEST_SECONDS:.0f} s after the end"
                )
            for process in self._cluster.everything:
                process.check_running()
            time.sleep(POLL_SECONDS)

    def _progress(self, campaign: Campaign, devices: int) -> str:
        with self.collector.store() as store:
            return progress(store, campaign, devices)

    def _is_over(self, campaign: Campaign) -> bool:
        last = campaign.manifest.rounds.count - 1

        def sealed() -> bool:
            with self.collector.store() as store:
                return is_sealed(store, campaign, last)

        return next(unless_down(sealed), False)
