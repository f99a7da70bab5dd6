"""A campaign's manifest: what is asked, of whom, how often, and with how much noise. Immutable.

The analyst writes TOML; the wire carries canonical msgpack; the SHA-256 of those bytes names the
campaign. A changed manifest is another campaign with other topics, so nothing that a device agreed
to can change under it.

Claim: a `Manifest` that exists is valid. Both ways in, `from_toml` and `from_bytes`, pass the same
checks, and `from_bytes` accepts only the one canonical encoding.
"""

from __future__ import annotations

import hashlib
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from protocol_spec.adaptive import ChooseFor
from protocol_spec.attributes import Attribute
from protocol_spec.body import BodyFormat
from protocol_spec.calibration import Calibration
from protocol_spec.canonical import pack, unpack_manifest
from protocol_spec.errors import ManifestError, Problem
from protocol_spec.limits import MAX_MANIFEST_BYTES
from protocol_spec.manifest_fields import FIELDS
from protocol_spec.manifest_reader import read_manifest, with_first
from protocol_spec.schedule import Schedule
from protocol_spec.ways import Budget, Reporting, Way, make_way

__all__ = ["Manifest"]


@dataclass(frozen=True)
class Manifest:
    """A valid campaign. Build one with `from_toml`, `from_file` or `from_bytes`.

    `devices` is the expected number of them, 0 if it is not stated; `operator` is the public key
    of whoever signs, empty if nobody does.
    """

    format: int
    slug: str
    title: str
    purpose: str
    owner: str
    contact: str
    created: int
    expires: int
    retention: int
    eps_inf: float
    eps_1: float
    min_reports: int
    max_values: int
    receipt_pages: int
    rounds: Schedule
    attributes: tuple[Attribute, ...]
    reporting: Reporting
    choose_for: ChooseFor
    devices: int
    operator: bytes

    @classmethod
    def from_toml(cls, text: str, *, now: int | None = None) -> Manifest:
        """Read the analyst's file. Raises `ManifestError` listing every problem found.

        `now` is the instant that `first = "now"` means, the present unless it is given.
        """
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers and nesting beyond all reason
            raise ManifestError([Problem("manifest", None, f"is not TOML: {error}")]) from None
        return cls.from_authored(document, now=now)

    @classmethod
    def from_authored(cls, document: Mapping[str, Any], *, now: int | None = None) -> Manifest:
        """Read what the analyst wrote, as TOML was parsed."""
        begins = int(time.time()) if now is None else now
        manifest = cls(**read_manifest(with_first(document, begins), authored=True))
        if len(manifest.to_bytes()) > MAX_MANIFEST_BYTES:
            remedy = f"must encode to at most {MAX_MANIFEST_BYTES} bytes: shorten the values' names"
            raise ManifestError([Problem("manifest", len(manifest.to_bytes()), remedy)])
        return manifest

    @classmethod
    def from_file(cls, path: str | Path, *, now: int | None = None) -> Manifest:
        """Read the analyst's file from disk; what is wrong in it is told with its name."""
        try:
            return cls.from_toml(Path(path).read_text(encoding="utf-8"), now=now)
        except OSError as error:
            problem = Problem("manifest", None, f"cannot be read: {error.strerror}")
            raise ManifestError([problem], str(path)) from None
        except UnicodeDecodeError:
            problem = Problem("manifest", None, "must be UTF-8 text")
            raise ManifestError([problem], str(path)) from None
        except ManifestError as error:
            raise ManifestError(error.problems, str(path)) from None

    @classmethod
    def from_bytes(cls, payload: bytes) -> Manifest:
        """Read canonical bytes as they came from the broker or a device's store."""
        if len(payload) > MAX_MANIFEST_BYTES:
            remedy = f"must be at most {MAX_MANIFEST_BYTES} bytes"
            raise ManifestError([Problem("manifest", len(payload), remedy)])
        document = unpack_manifest(payload)
        if not isinstance(document, dict):
            raise ManifestError([Problem("manifest", None, "must be a msgpack map")])
        manifest = cls(**read_manifest(document))
        if manifest.to_bytes() != payload:
            raise ManifestError([Problem("manifest", None, "must be the canonical encoding")])
        return manifest

    def to_bytes(self) -> bytes:
        """The one canonical encoding: every field, in this order, shortest integers, float64."""
        document: dict[str, Any] = {name: getattr(self, name) for name in FIELDS.manifest}
        document["rounds"] = {name: getattr(self.rounds, name) for name in FIELDS.rounds}
        document["attributes"] = [_attribute(attribute) for attribute in self.attributes]
        return pack(document)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def campaign(self) -> str:
        """The campaign's name in topics: slug and the first eight hex digits of the digest."""
        return f"{self.slug}-{self.digest.hex()[:8]}"

    @property
    def full_name(self) -> str:
        """The slug and all of the digest: what an invitation names the campaign by."""
        return f"{self.slug}-{self.digest.hex()}"

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """How each attribute is answered, in order: what devices draw with and collectors count."""
        budget = Budget(
            reporting=self.reporting,
            eps_inf=self.eps_inf,
            eps_1=self.eps_1,
            max_values=self.max_values,
            choose_for=self.choose_for,
            rounds=self.rounds.count,
            each=self.rounds.each,
        )
        return tuple(make_way(attribute, budget, self.digest) for attribute in self.attributes)

    @cached_property
    def calibrations(self) -> tuple[Calibration, ...]:
        """The noise of each attribute, in order, as `Way.calibration` has it."""
        return tuple(way.calibration for way in self.ways)

    @cached_property
    def body_formats(self) -> tuple[BodyFormat, ...]:
        """How what each attribute's reports support is counted, in order (`Way.counted`)."""
        return tuple(way.counted for way in self.ways)

    @cached_property
    def answer_lengths(self) -> tuple[int, ...]:
        """Bytes of the answer in a body, for each attribute; zeros may stand behind it."""
        return tuple(way.answer_bytes for way in self.ways)

    @cached_property
    def body_bytes(self) -> int:
        """Bytes of every report's body: those of the longest answer to any of the questions."""
        return max(self.answer_lengths)

    @cached_property
    def lifetime_epsilon(self) -> float:
        """The most that a device can ever spend on this campaign."""
        return max(way.lifetime_epsilon for way in self.ways)


def _attribute(attribute: Attribute) -> dict[str, Any]:
    """In the order of the wire."""
    domain: dict[str, Any] = {"values": list(attribute.values)}
    if attribute.edges is not None:
        ends = {"low": attribute.low, "high": attribute.high}
        domain = {"edges": list(attribute.edges), "unit": attribute.unit, **ends}
    return {
        "name": attribute.name,
        "question": attribute.question,
        **domain,
        "changes": attribute.changes,
        "protocol": attribute.protocol,
        "calibration": attribute.method,
        **({"levels": list(attribute.levels)} if attribute.levels else {}),
    }
