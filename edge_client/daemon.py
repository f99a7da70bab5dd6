"""The agent's loop: which campaigns there are, when to draw, and a heartbeat with the status.

A report is drawn once a round, at a random moment of it; `delivery` carries it to the broker.
Nothing that arrives from the network can cause a draw (R12, I16).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from edge_client.agent import Agent, Due, ReadValue, Wait, due
from edge_client.clock import Clock, is_ahead_of, is_unsure
from edge_client.delivery import Delivery
from edge_client.errors import StorageFailure
from edge_client.records import Membership, Queued, Timing
from edge_client.status import Heartbeat, Problem
from protocol_spec import AllomfreeError, Entropy, random_below

log = logging.getLogger("allomfree.edge")


class CampaignSchedule:
    """When one campaign's next report is drawn."""

    def __init__(self, clock: Clock, timing: Timing, entropy: Entropy) -> None:
        self._clock = clock
        self._timing = timing
        self._entropy = entropy
        self._round: int | None = None
        self._moment = 0.0
        self._not_before = 0.0
        self.failure = ""

    def moment(self, membership: Membership, allowed: Due) -> float:
        """A uniform moment of what is left of the round; it must not depend on the value.

        Chosen once for a round. The round's very end is spared: a moment that is slept through
        would leave a gap.
        """
        if self._round != allowed.round:
            now, rounds = self._clock.wall(), membership.manifest.rounds
            spared = min(self._timing.step_seconds, rounds.period / 10)
            left = max(0.0, rounds.closes(allowed.round) - spared - now)
            self._round = allowed.round
            self._moment = now + left * random_below(1 << 32, self._entropy) / (1 << 32)
        return self._moment

    @property
    def is_postponed(self) -> bool:
        """Whether the last draw failed, and it is not time to try again."""
        return self._clock.boottime() < self._not_before

    def postpone(self, campaign: str, error: AllomfreeError) -> str:
        """Try again later, and until then report why."""
        full = isinstance(error, StorageFailure)
        problem = Problem.DISK_FULL if full else Problem.REFUSED
        self._not_before = self._clock.boottime() + self._timing.source_retry_seconds
        self.failure = f"{problem}: {error}"
        log.warning("%s: %s", campaign, error, extra={"state": problem})
        return self.failure

    def wait(self, membership: Membership) -> float:
        """Seconds until something may become due: the chosen moment, or the next round."""
        now, rounds = self._clock.wall(), membership.manifest.rounds
        number = rounds.round_at(now)
        waits = (
            self._moment - now,
            (rounds.first if number is None else rounds.closes(number)) - now,
            membership.round_opened + rounds.period - self._clock.boottime(),
        )
        return min((wait for wait in waits if wait > 0), default=self._timing.step_seconds)


class Runner:
    """The daemon's loop: draws an agent's reports and delivers them."""

    def __init__(self, agent: Agent, read: ReadValue, delivery: Delivery) -> None:
        self.agent = agent
        self.clock = agent.clock
        self.delivery = delivery
        self._read = read
        self._timing = delivery.timing
        self._heartbeat = Heartbeat(agent.store.directory, self.clock.wall)
        self._schedules: dict[str, CampaignSchedule] = {}
        self._started = self.clock.boottime()
        self._warned: set[str] = set()

    def run(self, stop: Callable[[], bool], beat: Callable[[str], None] = lambda _: None) -> None:
        """Report every round, at a random moment of it, until stop() returns true."""
        try:
            while not stop():
                self.tick()
                beat(self._heartbeat.text)
        finally:
            self.close()

    def tick(self, wait: float | None = None) -> None:
        """One turn of the loop: draw what is due, settle, let the network run.

        It waits for the network until a moment or a new round, at most a step. Many agents in one
        process take turns with `wait=0`.
        """
        self.delivery.settle()
        members = self.delivery.memberships
        text = "; ".join([self._advance(member) for member in members]) or "no campaign joined"
        rest = min([self._timing.step_seconds, *(self._schedule(m).wait(m) for m in members)])
        self.delivery.run_network(rest if wait is None else wait)
        if trouble := self.delivery.trouble():
            connected = all(each.is_ready for each in self.delivery.connections.values())
            problem = Problem.REPORT_REFUSED if connected else Problem.BROKER_AWAY
            text = f"{problem}: {trouble}; {text}"
        self._heartbeat.write(text, len(self.delivery.queued))

    def close(self) -> None:
        """Disconnect from every broker; what is queued stays in the store."""
        self.delivery.close()

    def _advance(self, membership: Membership) -> str:
        """Draw this campaign's report if its moment has come; returns its state in words."""
        allowed = due(membership, self.clock)
        if isinstance(allowed, Wait):
            return allowed.value
        schedule = self._schedule(membership)
        if schedule.is_postponed:
            return schedule.failure
        if reason := self._put_off(membership, allowed):
            return reason
        if self.clock.wall() < schedule.moment(membership, allowed):
            return "waiting for this round's moment"
        self.delivery.reload()  # whatever happens next
        try:
            drawn = self.agent.draw(membership, self._read)
        except AllomfreeError as error:
            return schedule.postpone(membership.name, error)
        if isinstance(drawn, Queued):
            self.delivery.add(drawn)
            log.info("%s: report for round %d drawn and stored", membership.name, drawn.round)
        return "report drawn"

    def _put_off(self, membership: Membership, allowed: Due) -> str | None:
        """Why to wait although a report is due: because of its end, or because of the clock, about
        which the collector's state is a hint."""
        name = membership.name
        queue = self.delivery.queues[name]
        if queue.is_closed:
            return "the collector has closed the campaign"
        state = queue.state
        is_ahead = is_ahead_of(state, membership.manifest, self.clock)
        if is_ahead and name not in self._warned:
            log.warning("%s: this clock is ahead of the collector's; one of them is wrong", name)
        (self._warned.add if is_ahead else self._warned.discard)(name)
        if not is_unsure(membership, allowed.round, self.clock):
            return None
        patience = min(self._timing.state_wait_seconds, membership.manifest.rounds.period / 10)
        if state is None and self.clock.boottime() < self._started + patience:
            return Wait.CLOCK_ASKED
        return Wait.CLOCK_DISPUTED if is_ahead else None

    def _schedule(self, membership: Membership) -> CampaignSchedule:
        if membership.name not in self._schedules:
            schedule = CampaignSchedule(self.clock, self._timing, self.delivery.entropy)
            self._schedules[membership.name] = schedule
        return self._schedules[membership.name]
