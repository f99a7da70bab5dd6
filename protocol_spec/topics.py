"""MQTT topics, built and parsed here and nowhere else, and the names in them.

    {ns}/v1/{campaign}/pub/...            collector to all
    {ns}/v1/{campaign}/up/{device}/...    one device to the collector
    {ns}/v1/{campaign}/down/{device}/...  the collector to one device

Identity is in the topic because the broker's access list checks it there; three subtrees by
direction make three lines of access list enough for any fleet.
"""

from __future__ import annotations

import re
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

CANARY_CAMPAIGN: Final = "canary"  # in the place of a campaign; without a digest it is not one
_MARKER: Final = ("drain", "Marker")  # neither a campaign nor, with a capital, a device


def check_namespace(namespace: str) -> str:
    """A namespace is one topic level that needs no quoting anywhere."""
    if not NAMESPACE.fullmatch(namespace):
        remedy = f"use 1 to {MAX_NAMESPACE_LENGTH} of a-z, 0-9 and inner hyphens or underscores"
        raise ParameterError("namespace", namespace, remedy)
    return namespace


def is_device(name: str) -> bool:
    return DEVICE.fullmatch(name) is not None


def is_campaign(name: str) -> bool:
    return CAMPAIGN.fullmatch(name) is not None


def from_all_devices(namespace: str = DEFAULT_NAMESPACE) -> str:
    """Filter: what devices publish, in every campaign. One for reports and requests: NATS limits
    the unacknowledged messages of each subscription and, to the same number, those of the session;
    with two, requests could push reports back for half a minute (A3)."""
    return f"{check_namespace(namespace)}/{VERSION}/+/up/+/+"


def for_all(namespace: str = DEFAULT_NAMESPACE) -> str:
    """Filter: what every device may read, of every campaign."""
    return f"{check_namespace(namespace)}/{VERSION}/+/pub/#"


def from_device(
    device: str, namespace: str = DEFAULT_NAMESPACE, campaign: str = "+"
) -> tuple[str, str]:
    """Filters: where one device may write its reports and requests."""
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
    """Where an access list is tested: nothing in it is private. What devices may write there has
    one level more than what collectors subscribe to, so that nobody collects it."""
    return "/".join((check_namespace(namespace), VERSION, campaign, *levels))


def marker(namespace: str = DEFAULT_NAMESPACE) -> str:
    """Where the collector publishes to itself, to know that the broker has delivered all before.

    It matches the filter of reports, so that it comes through the same queue; no device can have
    its name, so that the access list keeps devices from publishing there.
    """
    campaign, device = _MARKER
    return f"{check_namespace(namespace)}/{VERSION}/{campaign}/up/{device}/report"


class FromDevice(NamedTuple):
    """A parsed topic that a device publishes on. A tuple, because one is made for every report."""

    campaign: str
    device: str
    kind: str


class Topics:
    """The topics and filters of one campaign. All of `pub` is retained."""

    def __init__(self, campaign: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        if not is_campaign(campaign):
            remedy = "a campaign's name is its slug, a hyphen and eight hex digits"
            raise ParameterError("campaign", campaign, remedy)
        self._root = root = f"{check_namespace(namespace)}/{VERSION}/{campaign}"
        self.manifest = f"{root}/pub/manifest"
        self.signature = f"{root}/pub/signature"  # only where the manifest names an operator
        self.thresholds = f"{root}/pub/thresholds"
        self.state = f"{root}/pub/state"  # whether the collector is online; its last will
        self.receipt_root = f"{root}/pub/receipt/"
        self.all_reports, self.all_requests = f"{root}/up/+/report", f"{root}/up/+/request"

    def receipt(self, round_number: int, page: int) -> str:
        """One page of receipts of one round, retained until the round's deadline."""
        return f"{self.receipt_root}{round_number}/{page}"

    def result(self, attribute: str, round_number: int | None = None) -> str:
        """An attribute's histogram: of one round, or the latest one."""
        suffix = "" if round_number is None else f"/{round_number}"
        return f"{self._root}/pub/result/{attribute}{suffix}"

    def result_json(self, attribute: str) -> str:
        """An attribute's latest histogram in JSON, for dashboards."""
        return f"{self.result(attribute)}/json"

    def report(self, device: str) -> str:
        return f"{self._root}/up/{_checked(device)}/report"

    def request(self, device: str) -> str:
        return f"{self._root}/up/{_checked(device)}/request"

    def response(self, device: str) -> str:
        return f"{self._root}/down/{_checked(device)}/response"


def parse_from_device(topic: str, namespace: str = DEFAULT_NAMESPACE) -> FromDevice | None:
    """Who sent what on a topic, or None when no device may publish there."""
    levels = topic.split("/")
    if len(levels) != 6:
        return None
    first, version, campaign, up, device, kind = levels
    if first != namespace or version != VERSION or up != "up" or kind not in ("report", "request"):
        return None
    if not is_campaign(campaign) or not is_device(device):
        return None
    return FromDevice(campaign, device, kind)


def split_report(topic: str) -> tuple[str, str]:
    """The `report_root` of a report's topic, and the device's name, empty if it is not valid.

    For whoever has many to read.
    """
    root, _, rest = topic.partition("/up/")
    name = rest[: -len("/report")]
    good = rest.endswith("/report") and DEVICE.fullmatch(name) is not None
    return root, name if good else ""


def report_root(campaign: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """What all report topics of a campaign begin with."""
    return f"{check_namespace(namespace)}/{VERSION}/{campaign}"


def _checked(device: str) -> str:
    if not is_device(device):
        remedy = f"a device's name is 1 to {MAX_DEVICE_LENGTH} of a-z, 0-9 and hyphen"
        raise ParameterError("device", device, remedy)
    return device
