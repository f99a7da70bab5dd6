"""A campaign's manifest: what is asked, of whom, how often, and with how much noise. Immutable.

The analyst writes TOML; the wire carries canonical msgpack; the SHA-256 of those bytes names the
campaign. A changed manifest is another campaign with other topics, so nothing that a device agreed
to can change under it.

Claim: a `Manifest` that exists is valid. Both ways in, `from_toml` and `from_bytes`, pass the same
checks, and `from_bytes` accepts only the one canonical encoding.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from protocol_spec.attributes import Attribute
from protocol_spec.body import BodyFormat
from protocol_spec.calibration import Calibration
from protocol_spec.canonical import pack, unpack_manifest
from protocol_spec.errors import ManifestError, Problem
from protocol_spec.limits import MAX_MANIFEST_BYTES
from protocol_spec.manifest_reader import FORMAT, read_manifest
from protocol_spec.schedule import Schedule

__all__ = ["Manifest"]


@dataclass(frozen=True)
class Manifest:
    """A valid campaign. Build one with `from_toml`, `from_file` or `from_bytes`."""

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

    @classmethod
    def from_toml(cls, text: str) -> Manifest:
        """Read the analyst's file. Raises `ManifestError` listing every problem found."""
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers and nesting beyond all reason
            raise ManifestError([Problem("manifest", "", f"is not TOML: {error}")]) from None
        manifest = cls(**read_manifest(document))
        if len(manifest.to_bytes()) > MAX_MANIFEST_BYTES:
            remedy = f"must encode to at most {MAX_MANIFEST_BYTES} bytes: shorten the values' names"
            raise ManifestError([Problem("manifest", len(manifest.to_bytes()), remedy)])
        return manifest

    @classmethod
    def from_file(cls, path: str | Path) -> Manifest:
        """Read the analyst's file from disk."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            problem = Problem("manifest", str(path), f"cannot be read: {error.strerror}")
            raise ManifestError([problem]) from None
        except UnicodeDecodeError:
            raise ManifestError([Problem("manifest", str(path), "must be UTF-8 text")]) from None
        return cls.from_toml(text)

    @classmethod
    def from_bytes(cls, payload: bytes) -> Manifest:
        """Read canonical bytes as they came from the broker or a device's store."""
        if len(payload) > MAX_MANIFEST_BYTES:
            remedy = f"must be at most {MAX_MANIFEST_BYTES} bytes"
            raise ManifestError([Problem("manifest", len(payload), remedy)])
        document = unpack_manifest(payload)
        if not isinstance(document, dict):
            raise ManifestError([Problem("manifest", "", "must be a msgpack map")])
        manifest = cls(**read_manifest(document))
        if manifest.to_bytes() != payload:
            raise ManifestError([Problem("manifest", "", "must be the canonical encoding")])
        return manifest

    def to_bytes(self) -> bytes:
        """The one canonical encoding: every field, in this order, shortest integers, float64."""
        return pack(
            {
                "format": FORMAT,
                "slug": self.slug,
                "title": self.title,
                "purpose": self.purpose,
                "owner": self.owner,
                "contact": self.contact,
                "created": self.created,
                "expires": self.expires,
                "retention": self.retention,
                "eps_inf": self.eps_inf,
                "eps_1": self.eps_1,
                "min_reports": self.min_reports,
                "max_values": self.max_values,
                "receipt_pages": self.receipt_pages,
                "rounds": {
                    "first": self.rounds.first,
                    "period": self.rounds.period,
                    "count": self.rounds.count,
                    "grace": self.rounds.grace,
                },
                "attributes": [_attribute_document(attribute) for attribute in self.attributes],
            }
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def campaign(self) -> str:
        """The campaign's name in topics: slug and the first eight hex digits of the digest."""
        return f"{self.slug}-{self.digest.hex()[:8]}"

    @cached_property
    def calibrations(self) -> tuple[Calibration, ...]:
        """The noise of each attribute, in order."""
        return tuple(a.calibration(self.eps_inf, self.eps_1) for a in self.attributes)

    @cached_property
    def body_formats(self) -> tuple[BodyFormat, ...]:
        """How each attribute's reports are written, in order."""
        return tuple(BodyFormat(c.unary, c.k) for c in self.calibrations)


def _attribute_document(attribute: Attribute) -> dict[str, Any]:
    domain: dict[str, Any] = {"values": list(attribute.values)}
    if attribute.edges is not None:
        domain = {"edges": list(attribute.edges), "unit": attribute.unit}
    return {
        "name": attribute.name,
        "question": attribute.question,
        **domain,
        "protocol": attribute.protocol,
        "calibration": attribute.method,
    }
