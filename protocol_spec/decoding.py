"""From bytes to the items of an array, each checked: what all messages but maps have in common.

A field that is not as it should be raises `Bad` with its name; `decode` makes it a `Rejected`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

from protocol_spec.canonical import Undecodable, unpack
from protocol_spec.outcomes import Outcome, Rejected

__all__ = ["WIRE_VERSION", "Bad", "binary", "decode", "member", "uint"]

WIRE_VERSION: Final = 1


class _Encodable(Protocol):
    def encode(self) -> bytes: ...


Message = TypeVar("Message", bound=_Encodable)
Member = TypeVar("Member", bound=IntEnum)


class Bad(Exception):
    """A field is of the wrong type or out of range; the argument names it."""


def decode(
    payload: bytes,
    fields: int,
    build: Callable[[Any], Message],
    *,
    limit: int,
    binary: int,
) -> Message | Rejected:
    """A message of so many items, built from them, or why the bytes are none."""
    if len(payload) > limit:
        return Rejected(Outcome.OVERSIZE, f"more than {limit} bytes")
    try:
        items = unpack(payload, array=fields, binary=binary)
        if type(items) is not tuple or len(items) != fields:
            raise Bad(f"shape: not an array of {fields}")
        if type(items[0]) is not int or items[0] != WIRE_VERSION:
            raise Bad("version")
        message = build(items)
    except Undecodable:
        return Rejected(Outcome.MALFORMED, "not msgpack within the limits")
    except Bad as bad:
        return Rejected(Outcome.MALFORMED, f"bad {bad}")
    if message.encode() != payload:
        return Rejected(Outcome.MALFORMED, "not the canonical encoding")
    return message


def uint(value: Any, field: str, bound: int) -> int:
    """A whole number from 0 to below the bound."""
    if type(value) is not int or not 0 <= value < bound:
        raise Bad(field)
    return value


def binary(value: Any, field: str, length: int | None = None) -> bytes:
    """Bytes, of that length if one is given."""
    if type(value) is not bytes or (length is not None and len(value) != length):
        raise Bad(field)
    return value


def member(kind: type[Member], value: Any, field: str) -> Member:
    """One of the numbers that have a name."""
    if type(value) is not int or value not in kind._value2member_map_:
        raise Bad(field)
    return kind(value)
