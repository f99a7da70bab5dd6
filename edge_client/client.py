"""Everything a device's owner can do, for programs: the command line is a layer over this.

from edge_client import EdgeClient

with EdgeClient("/var/lib/heater/allomfree") as client:
    client.join("mqtts://broker.example/allomfree/home-heat-1a2b3c4d")
    client.report({"fuel": "wood"})
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_client.agent import Agent, DeviceState, ReadValue, Wait, due
from edge_client.clock import Clock, SystemClock, first_round_to_come
from edge_client.credentials import RememberedCredentials
from edge_client.daemon import Runner
from edge_client.delivery import Delivery
from edge_client.errors import (
    BrokerUnreachable,
    CampaignProblem,
    SettingsError,
    StateLost,
    as_edge_errors,
)
from edge_client.link import Connector, MakeLink, PahoLink
from edge_client.policy import Policy
from edge_client.records import FORGOTTEN, Invitation, Membership, Status, Timing, Trace, no_trace
from edge_client.status import ReportState
from edge_client.store import Store, recover
from protocol_spec import DEFAULT_NAMESPACE, AllomfreeError, Entropy, Manifest
from protocol_spec.programs.settings import (
    BrokerUrl,
    Credentials,
    parse_broker,
    parse_brokers,
    parse_digest,
    parse_invitation,
)

LEAST_UNKNOWN_LOSS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Reported:
    """What one call of `report` did for one campaign."""

    campaign: str
    round: int | None
    state: ReportState
    reason: str = ""

    @property
    def text(self) -> str:
        """State and reason as one text: `queued: ...`, or why nothing is due."""
        if self.state is ReportState.WAITING:
            return self.reason
        return f"{self.state}: {self.reason}" if self.reason else str(self.state)


class EdgeClient(DeviceState):
    """A device's agent. One per state directory at a time."""

    @as_edge_errors()
    def __init__(
        self,
        state_dir: str | Path,
        *,
        policy: Policy | None = None,
        credentials: Credentials | None = None,
        credentials_for: Iterable[str | BrokerUrl] | None = None,
        allow_plaintext: bool = False,
        keepalive: int = 60,
        exclusive: bool = True,
        clock: Clock | None = None,
        entropy: Entropy = os.urandom,
        trace: Trace = no_trace,
        timing: Timing | None = None,
        make_link: MakeLink = PahoLink,
    ) -> None:
        named = None if credentials_for is None else parse_brokers(list(credentials_for))

        def brokers() -> list[str] | None:
            """Those named, else those where campaigns were joined with credentials, if any."""
            if named is not None:
                return list(map(str, named))
            return sorted({m.broker for m in self.memberships() if m.known_broker}) or None

        super().__init__(state_dir, policy=policy, exclusive=exclusive, clock=clock, trace=trace)
        self.credentials = credentials or Credentials()
        self.remembered = RememberedCredentials(Path(state_dir))
        self.connector = Connector(
            self.credentials, allow_plaintext, keepalive, make_link, brokers, self.remembered.of
        )
        self._timing = timing or Timing()
        self._entropy = entropy
        self.agent = Agent(self.store, self.policy, clock=self.clock, entropy=entropy, trace=trace)

    # --- taking part -------------------------------------------------------------------------

    @as_edge_errors()
    def invitation(
        self,
        address: str | None = None,
        *,
        manifest: Manifest | None = None,
        broker: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        digest: str | None = None,
        timeout: float = 20.0,
        again: bool = False,
        check: bool = True,
    ) -> Invitation:
        """What joining would mean: fetched from the broker by address, or from a manifest.

        `digest` is the manifest's, in 64 digits, where the address does not name all of it. Draws
        and stores nothing. Raises if the campaign could not be joined, unless `check` is False, to
        look at what is refused; `again` as in `join`.
        """
        from edge_client.exchange import fetch_invitation, fetch_signer  # noqa: PLC0415 - not `run`

        pinned = None if digest is None else parse_digest(digest)
        if manifest is not None:
            if broker is None:
                raise CampaignProblem("a manifest needs the broker's address to report to")
            offered = Invitation(manifest, parse_broker(broker), namespace)
            offered.broker.check_plaintext(self.connector.allow_plaintext)
            found = fetch_signer(self.connector, offered, pinned, timeout)
        elif address is not None:
            place = parse_invitation(address)
            self.connector.check_invited(place.broker)
            found = fetch_invitation(self.connector, place, pinned, timeout)
        else:
            raise CampaignProblem("give a campaign's address, or a manifest and a broker")
        if check:
            self.check(found, again=again)
        return found

    def check(self, invitation: Invitation, *, again: bool = False) -> None:
        """Raise if this campaign could not be joined now. Draws nothing."""
        self.agent.check(invitation.manifest, invitation.operator)
        if not again:
            name = self.connector.username(invitation.broker)
            _check_not_forgotten(self.store, invitation.manifest, name)

    def join(
        self,
        campaign: str | Invitation,
        *,
        device: str | None = None,
        timeout: float = 20.0,
        again: bool = False,
    ) -> Membership:
        """Agree to a campaign. Draws the attribute for life; spends nothing yet.

        A device with a name of its own that was forgotten in the campaign is refused, because no
        report under that name would be counted; with `again` it joins all the same.
        """
        if isinstance(campaign, str):
            campaign = self.invitation(campaign, timeout=timeout, again=again)
        name = device or self.connector.username(campaign.broker)
        if not again:
            _check_not_forgotten(self.store, campaign.manifest, name)
        known = self.connector.will_know(campaign.broker)
        return self.agent.join(campaign, name, known_broker=known)

    def pause(self, campaign: str | None = None) -> Membership:
        """Draw and send nothing until resumed."""
        return self._set(campaign, "paused")

    def resume(self, campaign: str | None = None) -> Membership:
        """Go on after `pause` or `leave`."""
        return self._set(campaign, "joined")

    def leave(self, campaign: str | None = None) -> Membership:
        """Stop for good, but keep the memo: joining again reveals nothing new."""
        return self._set(campaign, "left")

    def _set(self, campaign: str | None, status: Status) -> Membership:
        membership = self.find(campaign)
        self.store.set_status(membership.name, status, int(self.clock.wall()))
        return self.find(membership.name)

    # --- reporting ---------------------------------------------------------------------------

    def report(self, values: Mapping[str, object], *, timeout: float = 30.0) -> list[Reported]:
        """Report this round's value of the one attribute drawn; the others are not looked at.

        A value that is missing is answered for as well: silence would reveal that (P1).
        """
        return self.report_from(values.__getitem__, timeout=timeout)

    def report_from(
        self, read: ReadValue, *, timeout: float = 30.0, visit: bool = False
    ) -> list[Reported]:
        """The same, reading the value only if a report is due.

        What is stored is sent even if a new report cannot be drawn; why not is raised after that.
        A visit ends as soon as nothing more can come, and returns what became of every report that
        had no receipt before it.
        """
        joined = {m.name: m for m in self.memberships() if m.status == "joined"}
        waiting = {
            (name, row.round)
            for name in joined
            for row in self.store.reports(name, queued_only=True)
        }
        failures: list[AllomfreeError] = []
        for membership in self.memberships():
            try:
                self.agent.draw(membership, read)
            except AllomfreeError as error:
                failures.append(error)
        delivery = self._delivery()
        left = {(row.campaign, row.round) for row in delivery.deliver(timeout, visit=visit)}
        if failures:
            raise failures[0]
        done = [self._latest(m, left, delivery) for m in self.memberships()]
        earlier = waiting - {(one.campaign, one.round) for one in done} if visit else ()
        return [self._fate(joined[name], n, left, delivery) for name, n in sorted(earlier)] + done

    def _latest(
        self, membership: Membership, left: set[tuple[str, int]], delivery: Delivery
    ) -> Reported:
        name, number, allowed = membership.name, membership.last_round, due(membership, self.clock)
        row = {row.round: row for row in self.store.reports(name)}.get(number)
        earlier = allowed in (Wait.NOT_DRAWN, Wait.ALL_PASSED)  # then `row` is an earlier round's
        if membership.status != "joined" or row is None or (earlier and row.fate != "queued"):
            if not isinstance(allowed, Wait):
                return Reported(name, None, ReportState.DUE)
            begins = first_round_to_come(membership.manifest, self.clock)
            more = f"; it begins at {begins}" if allowed is Wait.NOT_BEGUN and begins else ""
            return Reported(name, None, ReportState.WAITING, f"{allowed}{more}")
        return self._fate(membership, number, left, delivery)

    def _fate(
        self, membership: Membership, number: int, left: set[tuple[str, int]], delivery: Delivery
    ) -> Reported:
        name = membership.name
        if (name, number) not in left:
            fate = {row.round: row.fate for row in self.store.reports(name)}[number]
            return Reported(name, number, ReportState(fate))
        trouble = delivery.trouble(membership.broker)
        if not trouble and not delivery.queues[name].reports[number].attempts:
            trouble = "there was no time to send it"
        state = ReportState.QUEUED if trouble else ReportState.SENT
        return Reported(name, number, state, trouble)

    def runner(self, read: ReadValue) -> Runner:
        """The loop for daemons: see `Runner.run`."""
        return Runner(self.agent, read, self._delivery())

    def _delivery(self) -> Delivery:
        return Delivery(self.agent, self.connector, self._timing, self._entropy)

    # --- forgetting --------------------------------------------------------------------------

    def forget(self, campaign: str | None = None, *, timeout: float = 10.0) -> tuple[str, str]:
        """Ask the collector to withdraw what it can, then wipe the memory here and verify.

        Returns the campaign's name and what the collector answered. The ledger keeps its line: a
        rejoin draws a new memo and is charged again.
        """
        from edge_client.exchange import ask_to_forget  # noqa: PLC0415 - `run` asks nothing

        membership = self.find(campaign)
        try:
            answer = ask_to_forget(self.connector, membership, self._entropy(8), timeout)
        except (BrokerUnreachable, SettingsError) as error:
            answer = f"could not be asked: {error}"
        self.store.forget(membership, int(self.clock.wall()))
        if membership.broker not in (m.broker for m in self.memberships()):
            self.remembered.forget(membership.broker)
        return membership.name, answer


def _check_not_forgotten(store: Store, manifest: Manifest, name: str | None) -> None:
    """No budget is spent for nothing. Without a name of its own, a device gets a new one."""
    decisions = store.decisions(manifest.campaign)
    if name and decisions and decisions[-1][1] == FORGOTTEN:
        raise CampaignProblem(
            f"this device was forgotten in {manifest.campaign}, and its collector counts no report "
            f"of a forgotten device again. Nothing was drawn, sent or spent. If {name} is a new "
            "name for this device, or the collector a new one, use: allomfree-edge join --again"
        )


def accept_loss(
    state_dir: str | Path, policy: Policy, clock: Clock | None = None, trace: Trace = no_trace
) -> dict[str, float]:
    """Replace a lost memory by an empty one that stays charged. Returns the charges kept.

    A loss of unknown size is booked as LEAST_UNKNOWN_LOSS, or as what the policy allows a campaign
    if that is more (I14).
    Refused when the memory is sound: then `forget` is what wipes it.
    """
    try:
        Store(Path(state_dir), exclusive=True).close()
    except StateLost:
        pass
    else:
        raise CampaignProblem(
            f"the memory in {state_dir} is sound; nothing was changed. To wipe a campaign, "
            "use: allomfree-edge forget CAMPAIGN"
        )
    at = int((clock or SystemClock()).wall())
    unknown = max(LEAST_UNKNOWN_LOSS, policy.max_eps_inf)
    return recover(Path(state_dir), at, unknown, trace)
