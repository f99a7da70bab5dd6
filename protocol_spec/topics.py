"""MQTT topics, built and parsed here and nowhere else, and the names that stand in them.

    {ns}/v1/{campaign}/pub/...            collector to all
    {ns}/v1/{campaign}/up/{device}/...    one device to the collector
    {ns}/v1/{campaign}/down/{device}/...  the collector to one device

Identity is in the topic because the broker's access list checks it there; three subtrees by
direction make three lines of access list enough for any fleet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol_spec.errors import ParameterError
from protocol_spec.limits import (
    MAX_DEVICE_LENGTH,
    MAX_NAME_LENGTH,
    MAX_NAMESPACE_LENGTH,
    MAX_SLUG_LENGTH,
)

SLUG: Final = re.compile(rf"[a-z0-9](?:[a-z0-9-]{{0,{MAX_SLUG_LENGTH - 2}}}[a-z0-9])?")
CAMPAIGN: Final = re.compile(rf"{SLUG.pattern}-[0-9a-f]{{8}}")
CAMPAIGN_IN_FULL: Final = re.compile(rf"({SLUG.pattern})-([0-9a-f]{{64}})")
ATTRIBUTE: Final = re.compile(rf"[a-z][a-z0-9_-]{{0,{MAX_NAME_LENGTH - 1}}}")
DEVICE: Final = re.compile(rf"[a-z0-9-]{{1,{MAX_DEVICE_LENGTH}}}")
NAMESPACE: Final = re.compile(rf"[a-z0-9](?:[a-z0-9_-]{{0,{MAX_NAMESPACE_LENGTH - 2}}}[a-z0-9])?")


VERSION: Final = "v1"
DEFAULT_NAMESPACE: Final = "allomfree"

_UPWARD: Final = ("report", "request")
_UP: Final = "/up/"
_REPORT: Final = "/report"

CANARY_CAMPAIGN: Final = "canary"  # stands where a campaign would and, without a digest, is none
_MARKER: Final = ("drain", "Marker")  # neither a campaign nor, with a capital, a device


def check_namespace(namespace: str) -> str:
    """A namespace is one topic level that needs no quoting anywhere."""
    if not NAMESPACE.fullmatch(namespace):
        remedy = f"use 1 to {MAX_NAMESPACE_LENGTH} of a-z, 0-9 and inner hyphens or underscores"
        raise ParameterError("namespace", namespace, remedy)
    return namespace


def is_device(name: str) -> bool:
    """Whether a text is a device pseudonym."""
    return DEVICE.fullmatch(name) is not None


def is_campaign(name: str) -> bool:
    """Whether a text is a campaign's name, slug and digest."""
    return CAMPAIGN.fullmatch(name) is not None


def from_all_devices(namespace: str = DEFAULT_NAMESPACE) -> tuple[str, str]:
    """Filters: the reports and the requests of every campaign. Two, however many campaigns there
    are: NATS allows a session only so many unacknowledged messages over all its subscriptions."""
    return from_device("+", namespace)


def for_all(namespace: str = DEFAULT_NAMESPACE) -> str:
    """Filter: what every device may read, of every campaign."""
    return f"{check_namespace(namespace)}/{VERSION}/+/pub/#"


def from_device(
    device: str, namespace: str = DEFAULT_NAMESPACE, campaign: str = "+"
) -> tuple[str, str]:
    """Filters: where one device may write its reports and requests; `+` for all devices."""
    root = f"{check_namespace(namespace)}/{VERSION}/{campaign}/up/{device}"
    return f"{root}/report", f"{root}/request"


def to_device(device: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Filter: what only one device may read, of every campaign; `+` for all devices."""
    return f"{check_namespace(namespace)}/{VERSION}/+/down/{device}/response"


def everything_of(campaign: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Filter: all topics of one campaign."""
    return f"{check_namespace(namespace)}/{VERSION}/{campaign}/#"


def canary(
    *levels: str, namespace: str = DEFAULT_NAMESPACE, campaign: str = CANARY_CAMPAIGN
) -> str:
    """Where an access list is tried out: nobody collects from it, and nothing in it is private."""
    return "/".join((check_namespace(namespace), VERSION, campaign, *levels))


def marker(namespace: str = DEFAULT_NAMESPACE) -> str:
    """Where the collector writes to itself, to learn that the broker has delivered all before.

    It matches the filter of reports, so that it comes through the same queue; no device can have
    its name, so that the access list keeps devices from writing there.
    """
    campaign, device = _MARKER
    return f"{check_namespace(namespace)}/{VERSION}/{campaign}/up/{device}/report"


class FromDevice(NamedTuple):
    """A parsed topic that a device publishes on. A tuple, because one is made for every report."""

    campaign: str
    device: str
    kind: str


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one campaign."""

    campaign: str
    namespace: str = DEFAULT_NAMESPACE

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        if not is_campaign(self.campaign):
            remedy = "a campaign's name is its slug, a hyphen and eight hex digits"
            raise ParameterError("campaign", self.campaign, remedy)

    @property
    def _root(self) -> str:
        return f"{self.namespace}/{VERSION}/{self.campaign}"

    @property
    def manifest(self) -> str:
        """Canonical manifest bytes, retained."""
        return f"{self._root}/pub/manifest"

    @property
    def signature(self) -> str:
        """The operator's signature of the manifest, retained; only where it names an operator."""
        return f"{self._root}/pub/signature"

    @property
    def thresholds(self) -> str:
        """Thresholds for devices that cannot calculate them, retained."""
        return f"{self._root}/pub/thresholds"

    @property
    def state(self) -> str:
        """Whether the collector is there, retained and its last will."""
        return f"{self._root}/pub/state"

    @property
    def receipt_root(self) -> str:
        """What every receipt topic begins with."""
        return f"{self._root}/pub/receipt/"

    def receipt(self, round_number: int, page: int) -> str:
        """One page of receipts of one round, retained until the round's deadline."""
        return f"{self.receipt_root}{round_number}/{page}"

    def receipts_for(self, page: int) -> str:
        """Filter: the one page that a device needs, of every round."""
        return f"{self.receipt_root}+/{page}"

    def result(self, attribute: str, round_number: int | None = None) -> str:
        """An attribute's histogram: of one round, or the latest word on it."""
        suffix = "" if round_number is None else f"/{round_number}"
        return f"{self._root}/pub/result/{attribute}{suffix}"

    def result_json(self, attribute: str) -> str:
        """The latest word on an attribute once more, in JSON for dashboards."""
        return f"{self.result(attribute)}/json"

    def report(self, device: str) -> str:
        """Where a device publishes its reports."""
        return f"{self._root}/up/{_checked(device)}/report"

    def request(self, device: str) -> str:
        """Where a device asks to be forgotten."""
        return f"{self._root}/up/{_checked(device)}/request"

    def response(self, device: str) -> str:
        """Where the collector answers that request."""
        return f"{self._root}/down/{_checked(device)}/response"

    @property
    def all_reports(self) -> str:
        """Filter: every device's reports."""
        return f"{self._root}/up/+/report"

    @property
    def all_requests(self) -> str:
        """Filter: every device's requests."""
        return f"{self._root}/up/+/request"


def parse_from_device(topic: str, namespace: str = DEFAULT_NAMESPACE) -> FromDevice | None:
    """Who sent what on a topic, or None when no device may publish there."""
    levels = topic.split("/")
    if len(levels) != 6:
        return None
    first, version, campaign, up, device, kind = levels
    if first != namespace or version != VERSION or up != "up" or kind not in _UPWARD:
        return None
    if not is_campaign(campaign) or not is_device(device):
        return None
    return FromDevice(campaign, device, kind)


def split_report(topic: str) -> tuple[str, str]:
    """What all report topics of a campaign begin with, see `report_root`, and the device's name;
    for whoever has many to read. A name that is none is empty."""
    root, _, rest = topic.partition(_UP)
    name = rest[: -len(_REPORT)]
    good = rest.endswith(_REPORT) and DEVICE.fullmatch(name) is not None
    return root, name if good else ""


def report_root(campaign: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """What all report topics of a campaign begin with."""
    return f"{check_namespace(namespace)}/{VERSION}/{campaign}"


def _checked(device: str) -> str:
    if not is_device(device):
        remedy = f"a device's name is 1 to {MAX_DEVICE_LENGTH} of a-z, 0-9 and hyphen"
        raise ParameterError("device", device, remedy)
    return device
