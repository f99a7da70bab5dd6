"""The body of a report, and of a memo: what a randomised answer looks like as bytes.

Every value of an attribute gives a body of the same length, so that its size tells nothing.

    L-GRR   the value's index, unsigned big-endian, in as many bytes as the largest index needs
    L-UE    k bits; value i is bit 7 - i % 8 of byte i // 8; the bits behind the last value are 0
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol_spec.outcomes import Outcome

__all__ = ["BodyFormat"]


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """How answers over k values are written, in unary (one bit a value) or as one index.

    `length` is the number of bytes of every body of this format.
    """

    unary: bool
    k: int
    length: int = field(init=False, repr=False, compare=False)
    _padding: int = field(init=False, repr=False, compare=False)  # bits behind the last value

    def __post_init__(self) -> None:
        bits = self.k if self.unary else (self.k - 1).bit_length()
        object.__setattr__(self, "length", (bits + 7) // 8)
        object.__setattr__(self, "_padding", -self.k % 8 if self.unary else 0)

    def encode(self, index: int) -> bytes:
        """The answer that supports exactly one value. Not private: randomise it."""
        if not 0 <= index < self.k:
            raise IndexError("the value's index is outside the domain")
        return self.from_number(1 << (self.k - 1 - index) if self.unary else index)

    def supported(self, body: bytes) -> list[int]:
        """Indices of the values that a body supports: any number in unary, else exactly one."""
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
