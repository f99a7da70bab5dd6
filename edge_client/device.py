"""A device as its owner looks at it: memory, clock and policy. It knows no broker."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from edge_client.clock import Clock, SystemClock
from edge_client.errors import CampaignProblem
from edge_client.policy import Policy
from edge_client.records import Membership
from edge_client.store import Store
from edge_client.trace import Trace, no_trace
from protocol_spec.programs.output import shown


class Device:
    """What is remembered here, and what the owner allows."""

    def __init__(
        self,
        state_dir: str | Path,
        *,
        policy: Policy | None = None,
        exclusive: bool = False,
        clock: Clock | None = None,
        trace: Trace = no_trace,
    ) -> None:
        self.clock = clock or SystemClock()
        self.policy = policy or Policy()
        self.store = Store(Path(state_dir), exclusive=exclusive, trace=trace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; a later client goes on where this one stopped."""
        self.store.close()

    def memberships(self) -> list[Membership]:
        """Every campaign this device has joined."""
        return self.store.campaigns.all()

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
        raise CampaignProblem(f"{shown(name or 'no name')} {what}; joined are: {shown(names, 600)}")
