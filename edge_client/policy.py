"""What the owner allows, checked before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from edge_client.errors import PolicyRefusal, SettingsError
from protocol_spec import Manifest, parse_duration


@dataclass(frozen=True, slots=True)
class Policy:
    """The owner's limits: the `[policy]` table of the configuration file.

    eps_inf bounds what one answer can ever reveal; the lifetime budget adds up all answers about
    one source, over all campaigns, for ever.
    """

    max_eps_inf: float = 4.0
    lifetime_budget: float = 12.0
    max_values: int = 3
    min_period: int = 1
    campaigns: tuple[str, ...] = ("*",)
    sources: tuple[str, ...] = ("*",)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Policy:
        """Read the table; an unknown or unusable field is an error, never ignored."""
        known = {field.name for field in fields(cls)}
        for name in table:
            if name not in known:
                allowed = ", ".join(sorted(known))
                raise SettingsError(f"policy.{name} is not a limit; the limits are {allowed}")
        return cls(**{name: _read(name, value) for name, value in table.items()})

    def check(self, manifest: Manifest) -> None:
        """Raise `PolicyRefusal` if a campaign asks for more than the owner allows."""
        name = manifest.campaign
        if not any(fnmatchcase(name, pattern) for pattern in self.campaigns):
            raise _refusal(name, "campaigns", "is not among the campaigns allowed")
        if manifest.eps_inf > self.max_eps_inf:
            raise _refusal(
                name,
                "max_eps_inf",
                f"may reveal eps_inf = {manifest.eps_inf:g}, more than {self.max_eps_inf:g}",
            )
        if manifest.max_values > self.max_values:
            raise _refusal(
                name,
                "max_values",
                f"may ask for {manifest.max_values} different values, more than {self.max_values}",
            )
        if manifest.rounds.period < self.min_period:
            raise _refusal(
                name,
                "min_period",
                f"asks every {manifest.rounds.period} s, more often than {self.min_period} s",
            )
        for attribute in manifest.attributes:
            if not any(fnmatchcase(attribute.name, pattern) for pattern in self.sources):
                raise _refusal(name, "sources", f"may ask for {attribute.name!r}, not allowed")

    def check_budget(self, campaign: str, source: str, needed: float, used: float) -> None:
        """Raise `PolicyRefusal` if a charge would exceed the source's lifetime budget."""
        if not self.allows_charge(needed, used):
            raise _refusal(
                campaign,
                "lifetime_budget",
                f"needs {needed:g} more of source {source!r}, and {used:g} of its lifetime "
                f"budget of {self.lifetime_budget:g} is already used or promised",
            )

    def allows_charge(self, needed: float, used: float) -> bool:
        """Whether a charge stays within the lifetime budget of its source."""
        return used + needed <= self.lifetime_budget * (1 + 1e-12)


def _refusal(campaign: str, limit: str, what: str) -> PolicyRefusal:
    return PolicyRefusal(
        f"{campaign} {what}. Refused by your policy; nothing was drawn, sent or spent. "
        f"If you agree to it, change policy.{limit} in the configuration file"
    )


def _read(name: str, value: Any) -> Any:
    if name in ("campaigns", "sources"):
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise SettingsError(f"policy.{name} = {value!r}: must be a list of names; * matches any")
    if name == "min_period":
        seconds = parse_duration(value) if isinstance(value, str) else None
        if seconds is not None:
            return seconds
    number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if not number or (name in ("max_values", "min_period") and not isinstance(value, int)):
        raise SettingsError(f"policy.{name} = {value!r}: must be a number, 0 or more")
    if name == "max_values" and value < 1:
        raise SettingsError(
            f"policy.{name} = {value!r}: must be 1 or more; to refuse all, use campaigns = []"
        )
    return value
