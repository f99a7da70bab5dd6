"""The shape of what the owner is shown: printed as JSON as it is, or turned into text or a page."""

from __future__ import annotations

from typing import TypedDict

from edge_client.records import Fate, Status, Treatment
from protocol_spec import Reporting


class AboutFacts(TypedDict):
    """Who asks, what for, until when."""

    campaign: str
    title: str
    purpose: str
    owner: str
    contact: str
    digest: str
    rounds: int
    period_seconds: int
    first_round: str
    ends: str
    eps_inf: float
    eps_1: float
    max_values: int
    reporting: Reporting
    answers: str
    lifetime_epsilon: float
    bound: str


class AttributeFacts(TypedDict):
    """One question: its answers, its odds, and the bytes a report of it has."""

    attribute: str
    question: str
    values: list[str]
    protocol: str
    one_report: str
    all_reports: str
    belief_one_report: str
    belief_all_reports: str
    not_hidden: list[str]
    warning: str
    bytes: str
    length: int


class SourceFacts(TypedDict):
    """An attribute without a source that can be read here: why, and lines to add."""

    attribute: str
    problem: str
    lines: str


class InvitationFacts(AboutFacts):
    """Everything an owner should see before agreeing."""

    whole_digest: bool
    operator: str
    operator_name: str | None
    operator_verified: bool
    broker: str
    credentials: Treatment
    topic: str
    attributes: list[AttributeFacts]
    never_leaves: list[str]
    broker_sees: list[str]
    silence: str
    sources: list[SourceFacts]


class DrawnRoundFacts(TypedDict):
    """A round that this device drew to answer."""

    round: int
    opens: str


class JoinedFacts(TypedDict):
    """What joining has settled; `rounds` is None where every round is answered."""

    campaign: str
    device: str
    attribute: str
    rounds: list[DrawnRoundFacts] | None
    warning: str


class ReportFacts(TypedDict):
    """A report decoded: exactly the bytes, and what they say."""

    round: int
    bytes: str
    says: list[str]
    fate: Fate
    drawn: str
    deadline: str


class DecisionFacts(TypedDict):
    """What was decided about a campaign, and when."""

    at: str
    what: str


class CampaignFacts(AboutFacts):
    """What left, what is queued, what it cost."""

    status: Status
    state: str
    broker: str
    device: str
    topic: str
    drawn_attribute: AttributeFacts
    drawn_rounds: list[DrawnRoundFacts] | None
    queued: list[ReportFacts]
    sent: list[ReportFacts]
    memos: int
    reports: int
    epsilon_exact: float
    epsilon_charged: float
    decisions: list[DecisionFacts]
    never_leaves: list[str]
    broker_sees: list[str]


class LedgerFacts(TypedDict):
    """One charge."""

    at: str
    campaign: str
    source: str
    epsilon: float
    reason: str


class BudgetFacts(TypedDict):
    """What was charged or is promised, of what the owner allows: None is no limit.

    The source `*` is all sources together.
    """

    source: str
    used: float
    allowed: float | None


class ShowFacts(TypedDict):
    """All that `show` tells."""

    campaigns: list[CampaignFacts]
    ledger: list[LedgerFacts]
    budgets: list[BudgetFacts]
    clock: str


class CampaignStatus(TypedDict):
    """One campaign in a line."""

    campaign: str
    status: Status
    state: str
    attribute: str
    last_round: int | None
    queued: int
    reports: int
    epsilon_exact: float
    epsilon_charged: float
    epsilon_bound: float


class StatusFacts(TypedDict):
    """The running agent and its campaigns, in a few lines."""

    agent: str
    pid: int | None
    campaigns: list[CampaignStatus]
