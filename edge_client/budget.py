"""What a source of private values, and all of them together, may still be charged.

The ledger has what was spent. A campaign of format 2 is agreed to as a whole: from joining on, what
it may still spend is promised to it and to no other, so that no draw of it is refused or frozen
later because of what other campaigns learned meanwhile. One of format 1 is promised its first memo.
"""

from __future__ import annotations

from collections.abc import Iterator

from edge_client.policy import Policy
from edge_client.records import Membership
from edge_client.store import Store
from edge_client.store.highwater import Participation
from protocol_spec import Manifest


def needed_to_join(manifest: Manifest, shown: Participation | None) -> float:
    """What must be affordable before a campaign is joined: one memo (format 1), or all of it."""
    if manifest.format == 1:
        return manifest.eps_inf
    if shown is not None and manifest.reporting == "once":
        return (manifest.rounds.each - shown.answers) * manifest.eps_1
    return manifest.lifetime_epsilon


def check_joining(
    store: Store, policy: Policy, manifest: Manifest, kept: Participation | None, now: float
) -> None:
    """Every attribute that could be asked must be affordable, or none is drawn."""
    names = [asked.name for asked in manifest.attributes]
    needed, campaign = needed_to_join(manifest, kept), manifest.campaign
    for name in names if kept is None else [names[kept.attribute]]:
        already = used(store, name, campaign, now, joining=True)
        policy.check_budget(campaign, name, needed, already)
    policy.check_total(campaign, needed, used_in_all(store, campaign, now, joining=True))


def check_draw(
    store: Store, policy: Policy, membership: Membership, needed: float, now: float
) -> None:
    """Before a first memo or an answer: the owner may have lowered a budget since joining."""
    name, source = membership.name, membership.attribute.name
    policy.for_joined.check_budget(name, source, needed, used(store, source, name, now))


def affords_memo(store: Store, policy: Policy, membership: Membership, now: float) -> bool:
    """Whether one more value may be charged; what a campaign was promised it always may be."""
    source, name, needed = membership.attribute.name, membership.name, membership.manifest.eps_inf
    if membership.manifest.format > 1:  # format 1 was promised its first memo only
        policy = policy.for_joined
    return policy.allows_charge(needed, used(store, source, name, now)) and (
        policy.allows_total(needed, used_in_all(store, name, now))
    )


def used(
    store: Store, source: str, campaign: str | None, now: float, *, joining: bool = False
) -> float:
    """What a source was charged ever, and what is promised to other campaigns than this one."""
    promised = _promised(store, campaign, now, joining)
    return store.ledger.charged(source) + sum(
        epsilon for member, epsilon in promised if member.attribute.name == source
    )


def used_in_all(store: Store, campaign: str | None, now: float, *, joining: bool = False) -> float:
    """The same of all sources together."""
    promised = sum(epsilon for _, epsilon in _promised(store, campaign, now, joining))
    return store.ledger.charged_in_all() + promised


def _promised(
    store: Store, campaign: str | None, now: float, joining: bool
) -> Iterator[tuple[Membership, float]]:
    """What other campaigns may still spend. Whoever joins leaves them also their first memos."""
    for member in store.campaigns.all():
        is_bound = joining or member.manifest.format > 1
        if is_bound and member.name != campaign and now < member.manifest.expires:
            yield member, _unspent(store, member)


def _unspent(store: Store, membership: Membership) -> float:
    charged, manifest = store.spent(membership).charged, membership.manifest
    if manifest.format == 1:
        return 0.0 if charged else manifest.eps_inf
    return max(0.0, membership.way.lifetime_epsilon - charged)
