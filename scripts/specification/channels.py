"""Every topic that the code can build, with the names of its parts instead of values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol_spec import Topics
from specification.blocks import SpecificationError

# Values that stand for themselves: no other part of a topic looks like them.
_CAMPAIGN = "campaign-00000000"
_VALUES: dict[str, Any] = {
    "round_number": 11111,
    "page": 22222,
    "attribute": "attribute-name",
    "device": "device-name",
}
_PLACES = {
    "namespace-name": "{namespace}",
    _CAMPAIGN: "{campaign}",
    "device-name": "{device}",
    "attribute-name": "{attribute}",
    "11111": "{round}",
    "22222": "{page}",
}
_TOPICS = Topics(_CAMPAIGN, "namespace-name")


@dataclass(frozen=True, slots=True)
class Channel:
    """One kind of topic: what is published on it, and the filter it is read with."""

    address: str
    message: str
    filter: str | None = None

    @property
    def subtree(self) -> str:
        """pub, up or down: it decides who speaks and whether the broker keeps the message."""
        return self.address.split("/")[3]

    @property
    def retained(self) -> bool:
        return self.subtree == "pub"

    @property
    def action(self) -> str:
        """What the collector does on it."""
        return "receive" if self.subtree == "up" else "send"

    @property
    def route(self) -> str:
        between = {"pub": "collector, all", "up": "device, collector", "down": "collector, device"}
        return between[self.subtree]

    @property
    def parameters(self) -> list[str]:
        return [part.strip("{}") for part in self.address.split("/") if part.startswith("{")]


def _address(build: Callable[..., str] | property, *names: str) -> str:
    if isinstance(build, property):
        topic = str(build.__get__(_TOPICS))
    else:
        topic = build(_TOPICS, **{name: _VALUES[name] for name in names})
    return "/".join(_PLACES.get(level, level) for level in topic.split("/"))


def _property(name: str) -> property:
    found: property = vars(Topics)[name]
    return found


CHANNELS: dict[str, Channel] = {
    "manifest": Channel(_address(_property("manifest")), "manifest"),
    "signature": Channel(_address(_property("signature")), "signature"),
    "thresholds": Channel(_address(_property("thresholds")), "thresholds"),
    "state": Channel(_address(_property("state")), "state"),
    "receipt": Channel(
        _address(Topics.receipt, "round_number", "page"),
        "receipt",
        _address(Topics.receipts_for, "page"),
    ),
    "result": Channel(_address(Topics.result, "attribute"), "result"),
    "roundResult": Channel(_address(Topics.result, "attribute", "round_number"), "result"),
    "resultJson": Channel(_address(Topics.result_json, "attribute"), "resultJson"),
    "report": Channel(
        _address(Topics.report, "device"), "report", _address(_property("all_reports"))
    ),
    "request": Channel(
        _address(Topics.request, "device"), "request", _address(_property("all_requests"))
    ),
    "response": Channel(_address(Topics.response, "device"), "response"),
}


def check_channels() -> None:
    """Every topic and filter of the code is in the list, and nothing else is."""
    known = {channel.address for channel in CHANNELS.values()}
    known |= {channel.filter for channel in CHANNELS.values() if channel.filter}
    built = set(_built())
    if known != built:
        raise SpecificationError(f"topics without a channel, or the reverse: {known ^ built}")


def _built() -> list[str]:
    """What every public member of `Topics` builds, with and without its optional parts."""
    found = []
    for name, member in vars(Topics).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            found.append(_address(member))
        elif inspect.isfunction(member):
            parameters = list(inspect.signature(member).parameters.values())[1:]
            required = [p.name for p in parameters if p.default is p.empty]
            found += [_address(member, *required), _address(member, *(p.name for p in parameters))]
    return [topic for topic in found if not topic.endswith("/")]  # what ends so is only a prefix
