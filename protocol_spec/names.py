"""What campaigns, attributes, devices and namespaces may be called: patterns of whole names."""

from __future__ import annotations

import re
from typing import Final

from protocol_spec.limits import (
    MAX_DEVICE_LENGTH,
    MAX_NAME_LENGTH,
    MAX_NAMESPACE_LENGTH,
    MAX_SLUG_LENGTH,
)

__all__ = ["ATTRIBUTE", "CAMPAIGN", "CAMPAIGN_IN_FULL", "DEVICE", "NAMESPACE", "NUMBER", "SLUG"]

SLUG: Final = re.compile(rf"[a-z0-9](?:[a-z0-9-]{{0,{MAX_SLUG_LENGTH - 2}}}[a-z0-9])?")
CAMPAIGN: Final = re.compile(rf"{SLUG.pattern}-[0-9a-f]{{8}}")
CAMPAIGN_IN_FULL: Final = re.compile(rf"({SLUG.pattern})-([0-9a-f]{{64}})")
ATTRIBUTE: Final = re.compile(rf"[a-z][a-z0-9_-]{{0,{MAX_NAME_LENGTH - 1}}}")
DEVICE: Final = re.compile(rf"[a-z0-9-]{{1,{MAX_DEVICE_LENGTH}}}")
NAMESPACE: Final = re.compile(rf"[a-z0-9](?:[a-z0-9_-]{{0,{MAX_NAMESPACE_LENGTH - 2}}}[a-z0-9])?")
NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")
