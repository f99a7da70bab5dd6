"""How a device finds out that its report was counted: its tag, on its page.

A receipt page holds the tags of all counted reports of a round whose devices share that page; see
`protocol_spec.wire.ReceiptPage` for the message.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Set

from protocol_spec.limits import TAG_BYTES
from protocol_spec.manifest import Manifest

__all__ = [
    "NameHash",
    "Tags",
    "hashed_for_page",
    "hashed_for_tag",
    "receipt_page",
    "receipt_tag",
]

NameHash = Callable[[bytes], bytes]
"""From a device's name, in ASCII, to a hash; what is the same for all devices is done before."""


def receipt_tag(manifest: Manifest, round_number: int, device: str) -> bytes:
    """What stands for a device's report of a round on a receipt page."""
    return hashed_for_tag(manifest, round_number)(device.encode("ascii"))[:TAG_BYTES]


def receipt_page(manifest: Manifest, device: str) -> int:
    """The page on which a device finds its receipts, the same in every round."""
    hashed = hashed_for_page(manifest)(device.encode("ascii"))
    return int.from_bytes(hashed[:4]) % manifest.receipt_pages


def hashed_for_tag(manifest: Manifest, round_number: int) -> NameHash:
    """The hash that begins with the tag of a device's report."""
    return _hashed_behind(manifest.digest + round_number.to_bytes(4))


def hashed_for_page(manifest: Manifest) -> NameHash:
    """The hash whose first four bytes, modulo the number of pages, are a device's page."""
    return _hashed_behind(manifest.digest)


def _hashed_behind(front: bytes) -> NameHash:
    begun = hashlib.sha256(front)

    def hashed(device: bytes) -> bytes:
        ours = begun.copy()
        ours.update(device)
        return ours.digest()

    return hashed


class Tags(Set[bytes]):
    """The tags of a page, kept as the bytes that came: a device looks for one of thousands."""

    __slots__ = ("_sorted",)
    __hash__ = Set._hash

    def __init__(self, joined: bytes) -> None:
        self._sorted = joined

    @classmethod
    def _from_iterable(cls, tags: Iterable[bytes]) -> Tags:  # type: ignore[override]
        return cls(b"".join(sorted(set(tags))))

    def __len__(self) -> int:
        return len(self._sorted) // TAG_BYTES

    def __iter__(self) -> Iterator[bytes]:
        return (self._at(i) for i in range(len(self)))

    def __contains__(self, tag: object) -> bool:
        if not isinstance(tag, bytes):
            return False
        place = bisect_left(range(len(self)), tag, key=self._at)
        return place < len(self) and self._at(place) == tag

    def _at(self, i: int) -> bytes:
        return self._sorted[TAG_BYTES * i : TAG_BYTES * (i + 1)]
