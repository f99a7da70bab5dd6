"""What the owner allows, checked before anything is drawn.

Why the defaults are what they are is in docs/privacy.md. A campaign is joined only within the
limits of that moment; one that was joined before is stopped only by a limit that its owner set.

The ledger has what was spent. A campaign is agreed to as a whole: from joining on, what it may
still spend is promised to it and to no other, so that no draw of it is refused or frozen later
because of what other campaigns learned meanwhile.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from edge_client.errors import PolicyRefusal, SettingsError
from edge_client.records import Membership
from edge_client.store import Store
from edge_client.store.highwater import Participation
from protocol_spec import Manifest, is_trial, parse_duration
from protocol_spec.limits import KEY_BYTES
from protocol_spec.mechanisms import MECHANISMS

THE_FILE: Final = "the configuration file"  # whose name commands know


class Operator(NamedTuple):
    """A publisher whose campaigns the owner trusts: a public key, and the owner's name for it."""

    key: bytes
    name: str


class _DefaultFloat(float):
    """A limit that the owner did not set."""


class _DefaultInt(int):
    """The same, whole."""


class _DefaultNames(tuple[str, ...]):
    """The same, a list of names."""


_UNLIMITED: Final = {"min_period": 0, "mechanisms": tuple(MECHANISMS)}  # of others: infinite
HIDING_CHANGES: Final = _DefaultNames(
    name for name, kind in MECHANISMS.items() if not kind.rules.shows_changes
)


@dataclass(frozen=True, slots=True)
class Policy:
    """The owner's limits: the `[policy]` table of the configuration file.

    eps_inf bounds what one answer can ever reveal; the lifetime budget adds up all answers about
    one source, over all campaigns, for ever; the total budget does so over all sources.
    """

    max_eps_inf: float = _DefaultFloat(2.0)
    lifetime_budget: float = _DefaultFloat(4.0)
    max_values: int = _DefaultInt(1)
    min_period: int = _DefaultInt(3_600)
    campaigns: tuple[str, ...] = ("*",)
    sources: tuple[str, ...] = ("*",)
    operators: tuple[Operator, ...] = ()
    total_budget: float = _DefaultFloat(8.0)
    mechanisms: tuple[str, ...] = HIDING_CHANGES

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Policy:
        """Read the table; an unknown or unusable field is an error, never ignored."""
        known = {field.name for field in fields(cls)}
        for name in table:
            if name not in known:
                allowed = ", ".join(sorted(known))
                raise SettingsError(f"policy.{name} is not a limit; the limits are {allowed}")
        return cls(**{name: _read(name, value) for name, value in table.items()})

    @property
    def for_joined(self) -> Policy:
        """What holds for a campaign already joined: the limits that the owner set."""
        unset = {
            field.name: _UNLIMITED.get(field.name, math.inf)
            for field in fields(self)
            if isinstance(getattr(self, field.name), _DefaultFloat | _DefaultInt | _DefaultNames)
        }
        return replace(self, **unset)  # type: ignore[arg-type] # no number of values is too large

    def check(self, manifest: Manifest) -> None:
        """Raise `PolicyRefusal` if a campaign asks for more than the owner allows. A trial reveals
        nothing; what it costs is traffic."""
        name, period = manifest.campaign, manifest.rounds.period
        if not any(fnmatchcase(name, pattern) for pattern in self.campaigns):
            what = "is not among the campaigns allowed"
            raise _refusal(name, "campaigns", what, [*self.campaigns, name])
        if period < self.min_period:
            what = f"asks every {period} s, more often than {self.min_period} s"
            raise _refusal(name, "min_period", what, period)
        if is_trial(manifest):
            return
        if manifest.reporting not in self.mechanisms:
            what = f"uses the mechanism {manifest.reporting!r}, which is not among those allowed"
            if MECHANISMS[manifest.reporting].rules.shows_changes:
                what += ": its reports can show that your value changed"
            raise _refusal(name, "mechanisms", what, [*self.mechanisms, manifest.reporting])
        for limit, asked, what in (
            ("max_eps_inf", manifest.eps_inf, "may reveal eps_inf = {:g}, more than {:g}"),
            ("max_values", manifest.max_values, "may ask for {} different values, more than {}"),
        ):
            if asked > getattr(self, limit):
                raise _refusal(name, limit, what.format(asked, getattr(self, limit)), asked)
        names = [part.name for attribute in manifest.attributes for part in attribute.parts]
        more = [n for n in names if not any(fnmatchcase(n, pattern) for pattern in self.sources)]
        if more:
            what = f"may ask for {', '.join(map(repr, more))}, not allowed"
            raise _refusal(name, "sources", what, [*self.sources, *more])

    def check_operator(self, campaign: str, operator: bytes) -> None:
        """Raise `PolicyRefusal` unless the verified signature is of an operator in the policy.

        Without operators in the policy all campaigns are allowed, signed or not.
        """
        if self.operators and self.operator_name(operator) is None:
            signer = f"signed by {operator.hex()}, whom you do not list" if operator else "unsigned"
            unchecked = "" if operator else ", or its signature was not checked"
            raise _refusal(campaign, "operators", f"is {signer}{unchecked}")

    def operator_name(self, operator: bytes) -> str | None:
        """The owner's name for an operator; None for one who is not listed."""
        return next((known.name for known in self.operators if known.key == operator), None)

    def allows_charge(self, needed: float, used: float, *, total: bool = False) -> bool:
        """Whether a charge stays within its source's lifetime budget, or within the total one."""
        budget = self.total_budget if total else self.lifetime_budget
        return used + needed <= budget * (1 + 1e-12)

    def check_budget(self, campaign: str, source: str | None, needed: float, used: float) -> None:
        """Raise `PolicyRefusal` if a charge would exceed the source's lifetime budget; without a
        source, the budget of all sources together."""
        if self.allows_charge(needed, used, total=source is None):
            return
        if source is None:
            limit, of = "total_budget", ""
            budget = f"the total budget of {self.total_budget:g} for all sources"
        else:
            limit, of = "lifetime_budget", f" of source {source!r}"
            budget = f"its lifetime budget of {self.lifetime_budget:g}"
        what = f"needs {needed:g} more{of}, and {used:g} of {budget} is already used or promised"
        short = math.ceil((used + needed) * 1000 - 1e-9) / 1000  # rounded up, to be typed
        raise _refusal(campaign, limit, what, short)


def _refusal(campaign: str, limit: str, what: str, allowing: object = None) -> PolicyRefusal:
    """`allowing` is what the limit would have to be; None where the owner must find that out."""
    line = "" if allowing is None else f": {limit} = {json.dumps(allowing)}, below [policy]"
    return PolicyRefusal(
        f"{campaign} {what}. Refused by your policy; nothing was drawn, sent or spent. "
        f"If you agree to it, change policy.{limit} in {THE_FILE}{line}"
    )


def _operators(value: Any) -> tuple[Operator, ...]:
    """A list of keys, or a table of names and keys; each key has 64 hexadecimal digits."""
    named = value.items() if isinstance(value, dict) else ((key, key) for key in value)
    try:
        found = tuple(Operator(bytes.fromhex(key), name) for name, key in named)
    except (TypeError, ValueError):
        found = (Operator(b"", ""),)
    if any(len(operator.key) != KEY_BYTES for operator in found):
        raise SettingsError(
            "policy.operators: must be a list of public keys of 64 hexadecimal digits, or a table "
            "of them by name. The operator has it from: allomfree-collector operator-key"
        )
    return found


def _read(name: str, value: Any) -> Any:
    if name == "operators":
        return _operators(value if isinstance(value, dict | list) else [value])
    if name in ("campaigns", "sources"):
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise SettingsError(f"policy.{name} = {value!r}: must be a list of names; * matches any")
    if name == "mechanisms":
        if isinstance(value, list) and all(item in MECHANISMS for item in value):
            return tuple(value)
        known = ", ".join(MECHANISMS)
        raise SettingsError(f"policy.{name} = {value!r}: must be a list of some of {known}")
    if name == "min_period" and isinstance(value, str):
        seconds = parse_duration(value)
        value = value if seconds is None else seconds
    kind = int if name in ("max_values", "min_period") else int | float
    if not isinstance(value, kind) or isinstance(value, bool) or not value >= 0:
        raise SettingsError(f"policy.{name} = {value!r}: must be a number, 0 or more")
    if name == "max_values" and value < 1:
        raise SettingsError(
            f"policy.{name} = {value!r}: must be 1 or more; to refuse all, use campaigns = []"
        )
    return value


def check_joining(
    store: Store, policy: Policy, manifest: Manifest, kept: Participation | None, now: float
) -> None:
    """Every attribute that could be asked must be affordable, or none is drawn.

    What was used up before a loss (`kept`) is charged already.
    """
    needed, campaign = manifest.lifetime_epsilon, manifest.campaign
    if kept is not None:
        needed = manifest.mechanisms[kept.attribute].charge_left(kept.answers)
    asked = manifest.attributes if kept is None else [manifest.attributes[kept.attribute]]
    for name in (part.name for attribute in asked for part in attribute.parts):
        policy.check_budget(campaign, name, needed, used(store, name, campaign, now))
    policy.check_budget(campaign, None, needed, used(store, None, campaign, now))


def check_draw(store: Store, policy: Policy, membership: Membership, now: float) -> None:
    """Before a first memo or an answer: the owner may have lowered a budget since joining. A trial
    is charged nothing."""
    if membership.is_trial:
        return
    name, needed = membership.name, membership.mechanism.charge
    for source in (*membership.sources, None):
        policy.for_joined.check_budget(name, source, needed, used(store, source, name, now))


def affords_memo(store: Store, policy: Policy, membership: Membership, now: float) -> bool:
    """Whether one more value may be charged, as promised; the owner may have lowered a budget."""
    name, needed = membership.name, membership.mechanism.charge
    return all(
        policy.for_joined.allows_charge(
            needed, used(store, source, name, now), total=source is None
        )
        for source in (*membership.sources, None)
    )


def used(store: Store, source: str | None, campaign: str | None, now: float) -> float:
    """What a source was charged ever, and what is promised to other campaigns than this one; of all
    sources together where none is named."""
    promised = sum(
        max(0.0, member.mechanism.lifetime_epsilon - store.spent(member).charged)
        for member in store.memberships()
        if member.name != campaign
        and not member.is_trial
        and now < member.manifest.expires
        and source in (None, *member.sources)
    )
    return store.charged(source) + promised
