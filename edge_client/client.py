"""The door for programs: everything an owner can do, without a command line.

from edge_client import EdgeClient

with EdgeClient("/var/lib/heater/allomfree") as client:
    client.join("mqtts://broker.example/allomfree/home-heat-1a2b3c4d")
    client.report({"fuel": "wood"})
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from edge_client.agent import Agent, ReadValue, Trace, Wait, due
from edge_client.clock import Clock, SystemClock
from edge_client.daemon import Runner
from edge_client.errors import (
    BrokerUnreachable,
    CampaignProblem,
    SettingsError,
    SourceFailure,
    StateLost,
    StateTooNew,
)
from edge_client.mqtt.link import Arrived, Link, Lost
from edge_client.policy import Policy
from edge_client.records import Membership, Queued, Status
from edge_client.store import Store, recover
from protocol_spec import (
    DEFAULT_NAMESPACE,
    AllomfreeError,
    Entropy,
    Manifest,
    ManifestError,
    Rejected,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Topics,
    decode_response,
    digest8,
)
from protocol_spec.programs.address import BrokerUrl, Credentials, parse_broker, parse_campaign

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Invitation:
    """A campaign that could be joined, and where it came from."""

    manifest: Manifest
    broker: BrokerUrl
    namespace: str


@dataclass(frozen=True, slots=True)
class Reported:
    """What one call of `report` did for one campaign."""

    campaign: str
    round: int | None
    state: str


class EdgeClient:
    """A device's agent. One per state directory at a time."""

    def __init__(
        self,
        state_dir: str | Path,
        *,
        policy: Policy | None = None,
        credentials: Credentials | None = None,
        allow_plaintext: bool = False,
        keepalive: int = 60,
        exclusive: bool = True,
        clock: Clock | None = None,
        entropy: Entropy = os.urandom,
        trace: Trace = lambda _: None,
    ) -> None:
        self.credentials = credentials or Credentials()
        self.clock = clock or SystemClock()
        self._allow_plaintext = allow_plaintext
        self._keepalive = keepalive
        self._entropy = entropy
        self._trace = trace
        self.store = Store(Path(state_dir), exclusive=exclusive)
        self.agent = Agent(
            self.store, policy or Policy(), clock=self.clock, entropy=entropy, trace=trace
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; a later client goes on where this one stopped."""
        self.store.close()

    # --- taking part -------------------------------------------------------------------------

    def invitation(
        self,
        address: str | None = None,
        *,
        manifest: Manifest | None = None,
        broker: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        timeout: float = 20.0,
    ) -> Invitation:
        """What joining would mean: fetched from the broker by address, or from a manifest.

        Draws and stores nothing. Raises if the campaign could not be joined.
        """
        if manifest is not None:
            if broker is None:
                raise CampaignProblem("a manifest needs the broker's address to report to")
            found = Invitation(manifest, parse_broker(broker), namespace)
        elif address is not None:
            found = self._fetch(*parse_campaign(address), timeout)
        else:
            raise CampaignProblem("give a campaign's address, or a manifest and a broker")
        found.broker.check_plaintext(self._allow_plaintext)
        self.agent.check(found.manifest)
        return found

    def join(
        self,
        campaign: str | Invitation,
        *,
        device: str | None = None,
        timeout: float = 20.0,
    ) -> Membership:
        """Agree to a campaign. Draws the attribute for life; spends nothing yet."""
        if isinstance(campaign, str):
            campaign = self.invitation(campaign, timeout=timeout)
        return self.agent.join(
            campaign.manifest,
            broker=str(campaign.broker),
            namespace=campaign.namespace,
            device=device or self.credentials.username,
        )

    def memberships(self) -> list[Membership]:
        """Every campaign this device has joined."""
        return self.store.memberships()

    def find(self, name: str | None = None) -> Membership:
        """One campaign by its name or the beginning of it; the only one when not named."""
        known = self.memberships()
        if not known:
            raise CampaignProblem("this device has joined no campaign; nothing was sent or spent")
        found = [m for m in known if name is None or m.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(m.name for m in known)
        what = "is not a joined campaign" if not found else "could be several campaigns"
        raise CampaignProblem(f"{name or 'no name'} {what}; joined are: {names}")

    def pause(self, campaign: str | None = None) -> Membership:
        """Draw and send nothing until resumed."""
        return self._set(campaign, "paused")

    def resume(self, campaign: str | None = None) -> Membership:
        """Go on after `pause` or `leave`."""
        return self._set(campaign, "joined")

    def leave(self, campaign: str | None = None) -> Membership:
        """Stop for good, but keep the memo: whoever joins again is asked nothing twice."""
        return self._set(campaign, "left")

    def _set(self, campaign: str | None, status: Status) -> Membership:
        membership = self.find(campaign)
        self.store.set_status(membership.name, status, int(self.clock.wall()))
        return self.find(membership.name)

    # --- reporting ---------------------------------------------------------------------------

    def report(self, values: Mapping[str, object], *, timeout: float = 30.0) -> list[Reported]:
        """Report this round's value of the one attribute drawn; the others are not looked at."""

        def read(attribute: str) -> object:
            if attribute not in values:
                raise SourceFailure(
                    f"no value for attribute {attribute!r}, which this device drew for life; "
                    "nothing was drawn or sent"
                )
            return values[attribute]

        return self.report_from(read, timeout=timeout)

    def report_from(self, read: ReadValue, *, timeout: float = 30.0) -> list[Reported]:
        """The same, reading the value only if a report is due.

        What is stored is sent even if a new report cannot be drawn; why not is raised after that.
        """
        failures: list[AllomfreeError] = []
        for membership in self.memberships():
            try:
                self.agent.draw(membership, read)
            except AllomfreeError as error:
                failures.append(error)
        runner = self.runner(read)
        left = {(row.campaign, row.round) for row in runner.deliver(timeout)}
        if failures:
            raise failures[0]
        return [self._reported(m, left, runner) for m in self.memberships()]

    def _reported(
        self, membership: Membership, left: set[tuple[str, int]], runner: Runner
    ) -> Reported:
        number = membership.last_round
        if membership.status != "joined":
            number = -1
        rows = {row.round: row for row in self.store.outbox(membership.name)}
        if number < 0 or number not in rows:
            wait = due(membership, self.clock)
            return Reported(membership.name, None, wait.value if isinstance(wait, Wait) else "due")
        row: Queued = rows[number]
        if (membership.name, number) not in left:
            return Reported(membership.name, number, row.fate)
        trouble = runner.trouble_with(membership.broker)
        if not trouble and not runner.was_sent(row):
            trouble = "there was no time to send it"
        state = f"queued: {trouble}" if trouble else "sent, no receipt yet"
        return Reported(membership.name, number, state)

    def runner(self, read: ReadValue) -> Runner:
        """The loop for daemons: see `Runner.run`."""
        return Runner(
            self.agent,
            read,
            credentials=self.credentials,
            keepalive=self._keepalive,
            allow_plaintext=self._allow_plaintext,
            entropy=self._entropy,
            trace=self._trace,
        )

    # --- forgetting --------------------------------------------------------------------------

    def forget(self, campaign: str | None = None, *, timeout: float = 10.0) -> tuple[str, str]:
        """Ask the collector to withdraw what it can, then wipe the memory here and verify.

        Returns the campaign's name and what the collector answered. The ledger keeps its line: a
        rejoin draws a new memo and is charged again.
        """
        membership = self.find(campaign)
        try:
            answer = self._request_forget(membership, timeout)
        except (BrokerUnreachable, SettingsError) as error:
            answer = f"was not told: {error}"
        self.store.forget(membership, int(self.clock.wall()))
        return membership.name, answer

    def _request_forget(self, membership: Membership, timeout: float) -> str:
        nonce = self._entropy(8)
        request = Request(digest8(membership.manifest), RequestKind.FORGET, nonce)
        link = self._link(parse_broker(membership.broker))
        link.connect()
        try:
            link.subscribe([membership.topics.response(membership.device)])
            link.publish(membership.topics.request(membership.device), request.encode())

            def answered(event: Arrived) -> Response | None:
                response = decode_response(event.payload)
                if isinstance(response, Rejected) or response.nonce != nonce:
                    return None
                return response

            response = _await(link, answered, timeout)
        finally:
            link.close()
        if response is None:
            return "did not answer; reports of rounds not yet sealed may still be counted"
        if response.status is ResponseStatus.DONE:
            return f"withdrew this device's reports from {response.rounds} unsealed rounds"
        return "refused; reports of rounds not yet sealed may still be counted"

    # --- talking to a broker outside of the loop -----------------------------------------------

    def _fetch(
        self, broker: BrokerUrl, namespace: str, campaign: str, timeout: float
    ) -> Invitation:
        topics = Topics(campaign, namespace)
        try:
            payload = self._retained(broker, topics.manifest, timeout)
        except BrokerUnreachable as error:
            raise BrokerUnreachable(f"{error}. Nothing was drawn, sent or spent") from None
        if not payload:
            raise CampaignProblem(
                f"{broker} has no campaign {campaign}; nothing was drawn, sent or spent. "
                "Check the address, or ask the campaign's owner whether it is open"
            )
        try:
            manifest = Manifest.from_bytes(payload)
        except ManifestError as error:
            raise CampaignProblem(
                f"{campaign}'s manifest is not valid; nothing was drawn, sent or spent. {error}"
            ) from None
        if manifest.campaign != campaign:
            raise CampaignProblem(
                f"the broker offered {manifest.campaign} under the name {campaign}: the manifest "
                "is not the one invited to. Nothing was drawn, sent or spent"
            )
        return Invitation(manifest, broker, namespace)

    def _retained(self, broker: BrokerUrl, topic: str, timeout: float) -> bytes | None:
        link = self._link(broker)
        link.connect()
        try:
            link.subscribe([topic])
            return _await(link, lambda e: e.payload if e.topic == topic else None, timeout)
        finally:
            link.close()

    def _link(self, broker: BrokerUrl) -> Link:
        broker.check_plaintext(self._allow_plaintext)
        return Link(broker, self.credentials, keepalive=self._keepalive)


def accept_loss(
    state_dir: str | Path, policy: Policy, clock: Clock | None = None
) -> dict[str, float]:
    """Replace a lost memory by an empty one that stays charged. Returns the charges kept.

    Refused when the memory is sound: then `forget` is what wipes it.
    """
    try:
        Store(Path(state_dir), exclusive=True).close()
    except (StateLost, StateTooNew):
        pass
    else:
        raise CampaignProblem(
            f"the memory in {state_dir} is sound; nothing was changed. To wipe a campaign, "
            "use: allomfree-edge forget CAMPAIGN"
        )
    at = int((clock or SystemClock()).wall())
    return recover(Path(state_dir), at, policy.max_eps_inf)


def _await(link: Link, wanted: Callable[[Arrived], Found | None], timeout: float) -> Found | None:
    """The first arriving message that is wanted, or None in time."""
    limit = time.monotonic() + timeout
    while time.monotonic() < limit:
        for event in link.step(0.1):
            if isinstance(event, Lost):
                raise BrokerUnreachable(event.reason)
            found = wanted(event) if isinstance(event, Arrived) else None
            if found is not None:
                return found
    return None
