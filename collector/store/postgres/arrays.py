"""Columns of a batch in PostgreSQL's binary form of arrays: made by numpy, not number by number."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from psycopg.adapt import Dumper
from psycopg.pq import Format

_BIGINT, _SMALLINT, _BYTEA = 20, 21, 17
_BIGINT_ARRAY, _SMALLINT_ARRAY, _BYTEA_ARRAY = 1016, 1005, 1001


class Bigints(bytes):
    """A bigint[]."""


class Smallints(bytes):
    """A smallint[]."""


class Byteas(bytes):
    """A bytea[]."""


def bigints(numbers: Sequence[int] | npt.NDArray[np.int64]) -> Bigints:
    """Numbers of 64 bits."""
    return Bigints(_head(_BIGINT, len(numbers)) + _cells(numbers, ">i8", 8))


def smallints(numbers: Sequence[int] | npt.NDArray[np.int64]) -> Smallints:
    """Numbers of 16 bits."""
    return Smallints(_head(_SMALLINT, len(numbers)) + _cells(numbers, ">i2", 2))


def byteas(texts: Sequence[bytes]) -> Byteas:
    """Strings of bytes."""
    lengths = {length: struct.pack(">i", length) for length in set(map(len, texts))}
    if len(lengths) == 1 and len(texts[0]):  # nearly always
        return Byteas(_head(_BYTEA, len(texts)) + _equal(texts, len(texts[0])))
    parts = [part for text in texts for part in (lengths[len(text)], text)]
    return Byteas(_head(_BYTEA, len(texts)) + b"".join(parts))


def _equal(texts: Sequence[bytes], length: int) -> bytes:
    cells = np.empty(len(texts), dtype=[("length", ">i4"), ("value", f"V{length}")])
    cells["length"] = length
    cells["value"] = np.frombuffer(b"".join(texts), dtype=f"V{length}")
    return cells.tobytes()


def _head(element: int, count: int) -> bytes:
    """One dimension that begins at 1, without nulls; an empty array has no dimension."""
    return (
        struct.pack(">iiIii", 1, 0, element, count, 1)
        if count
        else struct.pack(">iiI", 0, 0, element)
    )


def _cells(numbers: Sequence[int] | npt.NDArray[np.int64], kind: str, size: int) -> bytes:
    cells = np.empty(len(numbers), dtype=[("length", ">i4"), ("value", kind)])
    cells["length"] = size
    cells["value"] = np.asarray(numbers, dtype=np.int64)
    return cells.tobytes()


class _Raw(Dumper):
    """Passes on what is in binary form already."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        """As it is."""
        return bytes(obj)


class _BigintsDumper(_Raw):
    oid = _BIGINT_ARRAY


class _SmallintsDumper(_Raw):
    oid = _SMALLINT_ARRAY


class _ByteasDumper(_Raw):
    oid = _BYTEA_ARRAY


ARRAYS: Final[tuple[tuple[type, type[Dumper]], ...]] = (
    (Bigints, _BigintsDumper),
    (Smallints, _SmallintsDumper),
    (Byteas, _ByteasDumper),
)
