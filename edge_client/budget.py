"""What a source of private values may still be charged, over all campaigns.

The ledger has what was spent. A campaign of format 2 is agreed to as a whole: from joining on, what
it may still spend is promised to it and to no other, so that no draw of it is refused or frozen
later because of what other campaigns learned meanwhile.
"""

from __future__ import annotations

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


def used(store: Store, source: str, campaign: str, now: float) -> float:
    """What a source was charged ever, and what is promised to other campaigns than this one."""
    others = (m for m in store.campaigns.all() if m.name != campaign)
    promised = sum(_unspent(store, m) for m in others if _is_promised(m, source, now))
    return store.ledger.charged(source) + promised


def _is_promised(membership: Membership, source: str, now: float) -> bool:
    manifest = membership.manifest
    return manifest.format > 1 and membership.attribute.name == source and now < manifest.expires


def _unspent(store: Store, membership: Membership) -> float:
    return max(0.0, membership.way.lifetime_epsilon - store.spent(membership).charged)
