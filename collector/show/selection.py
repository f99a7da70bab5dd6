"""Which results somebody asked for: by attribute, and by round, pooled, latest or all."""

from __future__ import annotations

from typing import NamedTuple

from collector.errors import UnknownCampaign
from collector.records import POOLED, Campaign
from collector.rounds.results import round_result
from collector.store import Store
from protocol_spec import Result
from protocol_spec.programs.output import quoted, shown


def chosen_results(
    store: Store, campaign: Campaign, attribute: str | None, wanted: str
) -> list[Result]:
    """Results by attribute and round: a number, `latest`, `pooled` or `all`."""
    index = None if attribute is None else attribute_index(campaign, attribute)
    if wanted == "all":
        return store.results(campaign.id, index)
    which = POOLED if wanted == "pooled" else _round_number(store, campaign, wanted)
    stored = store.results(campaign.id, index, range(which, which + 1))
    if wanted == "pooled":
        return _or_explain(stored, campaign, "no round is sealed yet")
    return stored or preliminary(store, campaign, which, index)


class Latest(NamedTuple):
    """The latest rounds of a question, in order, and all that was released of it."""

    pooled: Result | None
    rounds: list[Result]

    @property
    def results(self) -> list[Result]:
        """All of them, the pooled one first."""
        return [*([] if self.pooled is None else [self.pooled]), *self.rounds]


def latest_results(
    store: Store, campaign: Campaign, index: int, last: int, until: int | None = None
) -> Latest:
    """The pooled result of one attribute and its latest sealed rounds.

    With `until` these are the latest up to that round. An attribute that no report was ever about
    has nothing pooled.
    """
    sealed = store.last_sealed(campaign.id)
    end = 0 if sealed is None else sealed + 1
    end = end if until is None else min(end, until + 1)
    pooled = next(iter(pooled_of(store, campaign, index)), None)
    return Latest(pooled, store.results(campaign.id, index, range(max(0, end - last), end)))


def pooled_of(store: Store, campaign: Campaign, index: int) -> list[Result]:
    """All that was released of an attribute, as one result; none before the first sealing."""
    return store.results(campaign.id, index, range(POOLED, POOLED + 1))


def attribute_index(campaign: Campaign, attribute: str) -> int:
    """The position of an attribute in its manifest."""
    names = [a.name for a in campaign.manifest.attributes]
    if attribute not in names:
        raise UnknownCampaign(
            f"unknown attribute {quoted(attribute)}; the campaign has: "
            f"{shown(', '.join(names), 600)}"
        )
    return names.index(attribute)


def preliminary(store: Store, campaign: Campaign, number: int, index: int | None) -> list[Result]:
    """A round that is still filling, as it would be if it were sealed now."""
    tallies = store.tallies(campaign.id, number)
    counted = store.outcomes(campaign.id, number)
    indices = range(len(campaign.manifest.attributes)) if index is None else [index]
    made = [round_result(campaign, number, i, tallies.get(i), counted) for i in indices]
    return _or_explain(made if tallies else [], campaign, f"round {number} has no reports")


def _round_number(store: Store, campaign: Campaign, wanted: str) -> int:
    if wanted == "latest":
        last = store.last_sealed(campaign.id)
        return 0 if last is None else last
    count = campaign.manifest.rounds.count
    if not wanted.isdecimal() or len(wanted) > 9 or int(wanted) >= count:
        raise UnknownCampaign(
            f"round {quoted(wanted)}: give a number below {count}, latest, pooled or all"
        )
    return int(wanted)


def _or_explain(found: list[Result], campaign: Campaign, why: str) -> list[Result]:
    if not found:
        raise UnknownCampaign(f"{campaign.name}: {why}; see allomfree-collector status")
    return found
