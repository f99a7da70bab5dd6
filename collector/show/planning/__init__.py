"""Before a campaign: how precise its results will be, which way of reporting suits it, and why.

    expected.py      the error that a way of reporting leads to, before there are reports
    records.py       what a plan says
    alternatives.py  the four ways of reporting side by side, and both adaptive choices
    numbers.py       mean and median of a numeric question, and advice on its bins
    receipts.py      how many pages of receipts
    verdict.py       whether the result would show anything, and what would make it do so
    campaign.py      all of it together

All numbers come from the chances that devices will draw with; the page and `plan` call this.
"""

from __future__ import annotations

from collector.show.planning.campaign import plan, plan_manifest, plan_terms
from collector.show.planning.expected import Terms, floor, terms_of, way_of, why
from collector.show.planning.receipts import pages_for, receipts_on, too_few_pages
from collector.show.planning.records import POOLED_ROUNDS, AttributePlan, Plan
from collector.show.planning.verdict import changing, warnings

__all__ = [
    "POOLED_ROUNDS",
    "AttributePlan",
    "Plan",
    "Terms",
    "changing",
    "floor",
    "pages_for",
    "plan",
    "plan_manifest",
    "plan_terms",
    "receipts_on",
    "terms_of",
    "too_few_pages",
    "warnings",
    "way_of",
    "why",
]
