"""The sample as it is served, and where each kind of page is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.support.browser.sample import Sample
from tests.support.collector_cli import facts

# Every kind of page by its name; NAME stands for the simulation, WINDOWS for one round for life.
PAGES: Final = {
    "home": "/",
    "campaign": "/campaigns/NAME",
    "round": "/campaigns/NAME/attributes/heating/rounds/latest",
    "filling": "/campaigns/NAME/attributes/heating/rounds/4",
    "pooled": "/campaigns/NAME/attributes/quiet-hour/rounds/pooled",
    "withheld": "/campaigns/NAME/attributes/rare/rounds/latest",
    "over-time": "/campaigns/NAME/attributes/heating",
    "numbers": "/campaigns/WINDOWS/attributes/room/rounds/pooled?"
    "a=%3C%2016%20%C2%B0C&b=18%20to%2020%20%C2%B0C",
    "windows": "/campaigns/WINDOWS/attributes/room?value=median",
    "planner": "/planner",
    "planner-of-campaign": "/planner?campaign=NAME",
    "missing": "/campaigns/nowhere",
}


@dataclass(frozen=True, slots=True)
class ServedSample:
    """An address, and the data behind it."""

    url: str
    sample: Sample

    def page(self, kind: str) -> str:
        """The address of a kind of page, of the simulation."""
        path = PAGES[kind].replace("WINDOWS", self.sample.windows)
        return self.url + path.replace("NAME", self.sample.simulation)

    def attribute(self, name: str, rest: str = "", campaign: str | None = None) -> str:
        return f"{self.url}/campaigns/{campaign or self.sample.simulation}/attributes/{name}{rest}"

    def estimates(self, attribute: str, number: str = "all") -> Any:
        """What the command prints of an attribute of the simulation."""
        wanted = ("--attribute", attribute, "--round", number, "--data-dir", self.sample.data)
        return facts("estimate", self.sample.simulation, *wanted)

    def estimate(self, attribute: str, number: str) -> Any:
        """The same of one histogram."""
        (found,) = self.estimates(attribute, number)
        return found
