"""The only module that uses msgpack: one encoding per message, and decoders that trust nothing.

Canonical means: arrays and maps in the order the protocol gives, integers in their shortest form,
floats as float64, byte strings as bin, text as UTF-8 str, no extension types. Whoever decodes
encodes again and compares, so that a message has exactly one accepted form.

The body of a report or memo has the same length for every value, so that its size shows nothing:

    L-GRR   the value's index, unsigned big-endian, in as many bytes as the largest index needs
    L-UE    k bits; value i is bit 7 - i % 8 of byte i // 8; the bits behind the last value are 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

import msgpack

from protocol_spec.limits import DIGEST_BYTES
from protocol_spec.outcomes import Outcome, Rejected


def pack(message: Any) -> bytes:
    """Encode plain values canonically."""
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


class Undecodable(ValueError):
    """The bytes are not msgpack within the limits."""


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


# --- arrays: from bytes to their items, each checked ----------------------------------------------

WIRE_VERSION: Final = 1
Parse = Callable[[Any], Any]  # the checked value of one field; raises `Bad`


class _Encodable(Protocol):
    def encode(self) -> bytes: ...


Message = TypeVar("Message", bound=_Encodable)


class ArrayMessage:
    """A message whose attributes are its fields, in the order of the wire."""

    __slots__: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return pack([WIRE_VERSION, *[getattr(self, name) for name in self.__slots__]])


class Bad(Exception):
    """A field has the wrong type or is out of range; the argument names it."""


def decode(
    payload: bytes,
    build: Callable[..., Message],
    fields: Sequence[Parse],
    *,
    limit: int,
    binary: int = DIGEST_BYTES,
) -> Message | Rejected:
    """A message of these fields after the version, or why the bytes are not one."""
    if len(payload) > limit:
        return Rejected(Outcome.OVERSIZE, f"more than {limit} bytes")
    size = len(fields) + 1
    try:
        items = unpack(payload, array=size, binary=binary)
        if type(items) is not tuple or len(items) != size:
            raise Bad(f"shape: not an array of {size}")
        if type(items[0]) is not int or items[0] != WIRE_VERSION:
            raise Bad("version")
        message = build(*[parse(item) for parse, item in zip(fields, items[1:])])
    except Undecodable:
        return Rejected(Outcome.MALFORMED, "not msgpack within the limits")
    except Bad as bad:
        return Rejected(Outcome.MALFORMED, f"bad {bad}")
    if message.encode() != payload:
        return Rejected(Outcome.MALFORMED, "not the canonical encoding")
    return message


def checked(field: str, sound: Callable[[Any], object]) -> Parse:
    """A field that is used as it is, if it is sound."""

    def parse(value: Any) -> Any:
        if not sound(value):
            raise Bad(field)
        return value

    return parse


def uint(field: str, bound: int) -> Parse:
    """A whole number from 0 to below the bound."""

    def parse(value: Any) -> int:
        if type(value) is not int or not 0 <= value < bound:
            raise Bad(field)
        return value

    return parse


def octets(field: str, length: int | None = None) -> Parse:
    """Bytes, of that length if one is given."""

    def parse(value: Any) -> bytes:
        if type(value) is not bytes or (length is not None and len(value) != length):
            raise Bad(field)
        return value

    return parse


def member(field: str, kind: type[IntEnum]) -> Parse:
    """One of the numbers that have a name."""

    def parse(value: Any) -> IntEnum:
        if type(value) is not int or value not in kind._value2member_map_:
            raise Bad(field)
        return kind(value)

    return parse


DIGEST: Final = octets("digest", DIGEST_BYTES)


# --- bodies: what a randomised answer looks like as bytes -----------------------------------------


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """How answers over k values are written, in unary (one bit a value) or as one index.

    `size` is how many values every body supports, 0 where that differs; of an index it is 1.
    `length` is the number of bytes of every body of this format.
    """

    unary: bool
    k: int
    size: int = 0
    length: int = field(init=False, repr=False, compare=False)
    _padding: int = field(init=False, repr=False, compare=False)  # bits behind the last value

    def __post_init__(self) -> None:
        bits = self.k if self.unary else (self.k - 1).bit_length()
        object.__setattr__(self, "size", self.size if self.unary else 1)
        object.__setattr__(self, "length", (bits + 7) // 8)
        object.__setattr__(self, "_padding", -self.k % 8 if self.unary else 0)

    def encode(self, *indices: int) -> bytes:
        """The answer that supports exactly these values; of one value it is not private."""
        if not all(0 <= index < self.k for index in indices):
            raise IndexError("the value's index is outside the domain")
        if not self.unary:
            [number] = indices
            return self.from_number(number)
        return self.from_number(sum(1 << (self.k - 1 - index) for index in indices))

    def supported(self, body: bytes) -> list[int]:
        """Indices of the values that a body supports."""
        number = self.to_number(body)
        if not self.unary:
            return [number]
        return [i for i in range(self.k) if number >> (self.k - 1 - i) & 1]

    def fault(self, body: bytes) -> Outcome | None:
        """The reason why bytes are no body of this format, or None when they are."""
        if len(body) != self.length:
            return Outcome.BAD_LENGTH
        if not self.unary:
            return None if int.from_bytes(body) < self.k else Outcome.BAD_VALUE
        if self.size and self.to_number(body).bit_count() != self.size:
            return Outcome.BAD_VALUE
        return Outcome.BAD_PADDING if body[-1] & self.padding_mask else None

    @property
    def padding_mask(self) -> int:
        """The bits of the last byte of a body in unary that stand for no value, and are 0."""
        return (1 << self._padding) - 1

    def to_number(self, body: bytes) -> int:
        """The body as an integer: the index, or the k bits with value 0 the highest."""
        return int.from_bytes(body) >> self._padding

    def from_number(self, number: int) -> bytes:
        """The inverse of `to_number`."""
        return (number << self._padding).to_bytes(self.length)
