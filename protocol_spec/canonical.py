"""The only module that touches msgpack: one encoding per message, and decoders that never trust.

Canonical means: arrays and maps in the order the protocol gives, integers in their shortest form,
floats as float64, byte strings as bin, text as UTF-8 str, no extension types. Whoever decodes
encodes again and compares, so that a message has exactly one accepted form.
"""

from __future__ import annotations

from typing import Any

import msgpack

from protocol_spec.errors import ManifestError, Problem
from protocol_spec.limits import KEY_BYTES, MAX_VALUES

__all__ = ["Undecodable", "pack", "unpack", "unpack_manifest"]


def pack(message: Any) -> bytes:
    """Encode plain values canonically."""
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


class Undecodable(ValueError):
    """The bytes are no msgpack within the limits."""


def unpack(payload: bytes, *, array: int, text: int = 0, binary: int = 0, maps: int = 0) -> Any:
    """Decode within limits. Lengths are bounded before anything is allocated for them."""
    try:
        return msgpack.unpackb(
            payload,
            use_list=False,
            raw=False,
            strict_map_key=True,
            max_array_len=array,
            max_map_len=maps,
            max_str_len=text,
            max_bin_len=binary,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        # A duplicate or unhashable map key is a TypeError; everything else a ValueError.
        raise Undecodable(type(error).__name__) from None


def unpack_manifest(payload: bytes) -> Any:
    """Decode a manifest's bytes into plain values."""
    try:
        return unpack(payload, array=MAX_VALUES + 1, text=4096, binary=KEY_BYTES, maps=32)
    except Undecodable:
        problem = Problem("manifest", None, "must be msgpack; these bytes are not")
        raise ManifestError([problem]) from None
