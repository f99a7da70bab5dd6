"""Bodies: k bits or one index, the same length for every value, one form for every answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import BodyFormat, Outcome

FORMATS = st.builds(BodyFormat, st.booleans(), st.integers(2, 4096))


@pytest.mark.parametrize(
    ("k", "length"), [(2, 1), (256, 1), (257, 2), (4096, 2), (65_536, 2), (65_537, 3)]
)
def test_an_index_takes_as_many_bytes_as_the_largest(k: int, length: int) -> None:
    assert BodyFormat(unary=False, k=k).length == length


@pytest.mark.parametrize(("k", "length"), [(2, 1), (8, 1), (9, 2), (16, 2), (17, 3), (4096, 512)])
def test_bits_take_an_eighth_of_a_byte_each(k: int, length: int) -> None:
    assert BodyFormat(unary=True, k=k).length == length


def test_value_0_is_the_highest_bit_of_the_first_byte() -> None:
    bits = BodyFormat(unary=True, k=10)
    assert bits.encode(0) == bytes([0b10000000, 0])
    assert bits.encode(7) == bytes([0b00000001, 0])
    assert bits.encode(8) == bytes([0, 0b10000000])
    assert bits.encode(9) == bytes([0, 0b01000000])


def test_an_index_is_big_endian() -> None:
    assert BodyFormat(unary=False, k=300).encode(258) == b"\x01\x02"


@given(FORMATS, st.data())
def test_an_answer_supports_what_it_was_made_for(form: BodyFormat, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, form.k - 1))
    body = form.encode(index)
    assert len(body) == form.length
    assert form.fault(body) is None
    assert form.supported(body) == [index]


@given(FORMATS, st.data())
def test_numbers_and_bodies_are_inverse(form: BodyFormat, data: st.DataObject) -> None:
    bound = 1 << form.k if form.unary else form.k
    number = data.draw(st.integers(0, bound - 1))
    assert form.to_number(form.from_number(number)) == number
    assert form.fault(form.from_number(number)) is None


@given(FORMATS, st.data())
def test_any_bytes_are_a_body_or_have_one_fault(form: BodyFormat, data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=8) | st.binary(min_size=form.length, max_size=form.length))
    if len(body) != form.length:
        assert form.fault(body) is Outcome.BAD_LENGTH
    elif form.fault(body) is None:
        assert form.from_number(form.to_number(body)) == body
        assert all(0 <= index < form.k for index in form.supported(body))
    else:
        expected = Outcome.BAD_PADDING if form.unary else Outcome.BAD_VALUE
        assert form.fault(body) is expected


def test_any_number_of_bits_may_be_supported() -> None:
    bits = BodyFormat(unary=True, k=10)
    assert bits.supported(b"\x00\x00") == []
    assert bits.supported(b"\xff\xc0") == list(range(10))
    assert bits.supported(bytes([0b01000001, 0b01000000])) == [1, 7, 9]


@pytest.mark.parametrize("bit", range(6))
def test_each_padding_bit_must_be_zero(bit: int) -> None:
    assert BodyFormat(unary=True, k=10).fault(bytes([0, 1 << bit])) is Outcome.BAD_PADDING


def test_there_is_no_padding_when_k_fills_its_bytes() -> None:
    assert BodyFormat(unary=True, k=16).fault(b"\xff\xff") is None


def test_the_first_value_outside_the_domain() -> None:
    index = BodyFormat(unary=False, k=300)
    assert index.fault(b"\x01\x2b") is None
    assert index.fault(b"\x01\x2c") is Outcome.BAD_VALUE


@given(FORMATS, st.integers())
def test_an_index_outside_the_domain_has_no_body(form: BodyFormat, index: int) -> None:
    if not 0 <= index < form.k:
        with pytest.raises(IndexError):
            form.encode(index)
