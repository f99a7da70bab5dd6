"""Every size, count and length that the protocol bounds, in one place.

Whoever reads a message refuses what is beyond these before allocating anything for it. The tables
of `README.md` and the schemas of `asyncapi.yaml` are generated from here.
"""

from __future__ import annotations

from typing import Final

# A campaign.
MAX_ATTRIBUTES: Final = 128
MIN_VALUES: Final = 2
MAX_VALUES: Final = 4096
MAX_GROUPS: Final = 32  # that are named; all other devices are one more
MAX_ROUNDS: Final = 65_536
MAX_RECEIPT_PAGES: Final = 65_536
MAX_MIN_REPORTS: Final = 10**12
MAX_DEVICES: Final = 10**12
MAX_DRAIN_SECONDS: Final = 86_400
MAX_PERIOD_SECONDS: Final = 366 * 86_400
MAX_RETENTION_SECONDS: Final = 100 * MAX_PERIOD_SECONDS
MAX_INSTANT: Final = 253_402_300_799  # the last second of the year 9999
MIN_EPSILON: Final = 1e-9
MAX_EPS_INF: Final = 20.0
MIN_PUBLISHED_EPS_1: Final = 0.001  # below it, published thresholds would show in estimates
MIN_LEVELS: Final = 2  # of nested reports
MAX_LEVELS: Final = 32
KEY_BYTES: Final = 32  # an operator's public key

# Names and texts of a campaign, in characters.
MAX_SLUG_LENGTH: Final = 32
MAX_NAME_LENGTH: Final = 32
MAX_DEVICE_LENGTH: Final = 32
MAX_NAMESPACE_LENGTH: Final = 64
MAX_TITLE_LENGTH: Final = 100
MAX_PURPOSE_LENGTH: Final = 1000
MAX_OWNER_LENGTH: Final = 100
MAX_CONTACT_LENGTH: Final = 200
MAX_QUESTION_LENGTH: Final = 300
MAX_VALUE_LENGTH: Final = 100
MAX_UNIT_LENGTH: Final = 16

# Messages, in bytes.
DIGEST_BYTES: Final = 8  # of the manifest's digest, in every message
TAG_BYTES: Final = 4
NONCE_BYTES: Final = 8
MAX_BODY_BYTES: Final = 1 + MAX_VALUES // 8  # a level, and a bit for each value
MAX_REPORT_BYTES: Final = 20 + MAX_BODY_BYTES
MAX_CONTROL_BYTES: Final = 64  # state, request, response
SIGNATURE_BYTES: Final = 64  # Ed25519
MAX_SIGNATURE_BYTES: Final = 78  # the message around it
MAX_THRESHOLDS_BYTES: Final = 65_683  # 32 steps of 16 bytes for each of 128 attributes
PAGE_TAGS: Final = 400  # at a time: a report, its acknowledgement and two pages are below 4 kB
MAX_RECEIPT_BYTES: Final = 21 + PAGE_TAGS * TAG_BYTES
DEVICES_PER_PAGE: Final = 250  # where the number of pages follows from that of the devices
MAX_MANIFEST_BYTES: Final = 262_144
MAX_RESULT_BYTES: Final = 1 << 20
MAX_JSON_BYTES: Final = 1 << 19  # brokers often take no more than 1 MiB
MAX_COUNT: Final = (1 << 63) - 1  # of reports

# The mathematics is exact beyond what a manifest may ask for.
MAX_EPSILON: Final = 100.0
MAX_DOMAIN: Final = 65_536
