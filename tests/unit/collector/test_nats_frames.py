"""What a NATS server sends is measured before anything is kept of it (A5)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from collector.links.nats import (
    LARGEST_MESSAGE,
    LENGTHS,
    LONGEST_LINE,
    SHORT_MESSAGE,
    BadFrame,
    Frame,
    Patterns,
    cut,
)

STATUS = b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 95\r\n\r\n"
SENT = (
    b'INFO {"x":1}\r\n'
    b"PING\r\n"
    b"HMSG $MQTT.msgs.a.b s1 $JS.ACK.x 25 29\r\nNATS/1.0\r\nNmqtt-Pub:1\r\n\r\npay0\r\n"
    b"MSG _INBOX.a.1 s1 4\r\n\r\n\r\n\r\n"
    b"MSG a s2 reply 0\r\n\r\n"
    b"HMSG _INBOX.b s2 %d %d\r\n%s\r\n"
    b"-ERR 'Authorization Violation'\r\n" % (len(STATUS), len(STATUS), STATUS)
)
MEANT = [
    Frame(b"INFO", payload=b'{"x":1}'),
    Frame(b"PING"),
    Frame(b"MSG", b"$MQTT.msgs.a.b", b"$JS.ACK.x", b"NATS/1.0\r\nNmqtt-Pub:1\r\n\r\n", b"pay0"),
    Frame(b"MSG", b"_INBOX.a.1", payload=b"\r\n\r\n"),
    Frame(b"MSG", b"a", b"reply"),
    Frame(b"MSG", b"_INBOX.b", headers=STATUS),
    Frame(b"-ERR", payload=b"'Authorization Violation'"),
]


def read(sent: bytes, at: int, most: int) -> tuple[list[Frame], int]:
    return cut(sent, at, most, {})


def test_frames_are_cut_apart() -> None:
    assert read(SENT, 0, 100) == (MEANT, len(SENT))


def test_in_any_two_parts() -> None:
    for middle in range(len(SENT)):
        first, at = read(SENT[:middle], 0, 100)
        second, end = read(SENT, at, 100)
        assert first + second == MEANT
        assert end == len(SENT)


def test_no_more_than_asked_for() -> None:
    first, at = read(SENT, 0, 2)
    assert first == MEANT[:2]
    assert read(SENT, at, 1)[0] == MEANT[2:3]


def test_a_status_and_its_headers_can_be_read() -> None:
    frame = MEANT[5]
    assert frame.status == 409
    assert [f.status for f in MEANT if f is not frame] == [0] * 6


# --- messages of one length, one behind the other ------------------------------------------------


def delivered(number: int, payload: bytes) -> tuple[bytes, Frame]:
    """A message as a stream delivers it: as it is sent, and what is meant."""
    head = b"NATS/1.0\r\nNmqtt-Pub:1\r\n\r\n"
    subject, reply = b"$MQTT.msgs.up.d%d" % number, b"$JS.ACK.x.%d" % number
    line = b"HMSG %b s1 %b %d %d\r\n" % (subject, reply, len(head), len(head) + len(payload))
    return line + head + payload + b"\r\n", Frame(b"MSG", subject, reply, head, payload)


def together(payloads: Iterable[bytes]) -> tuple[bytes, list[Frame]]:
    pairs = [delivered(number, payload) for number, payload in enumerate(payloads)]
    return b"".join(sent for sent, _ in pairs), [frame for _, frame in pairs]


def test_messages_are_cut_apart_whatever_is_in_them() -> None:
    trap = delivered(9, b"12345678")[0]
    payloads = (*[b"a\r\nb"] * 5, b"", b"\xff\0\r\n\n", trap, b"a\r\nb", trap, *[b""] * 3)
    sent, meant = together(payloads)
    assert read(sent, 0, 100) == (meant, len(sent))
    for middle in range(len(sent)):
        first, at = read(sent[:middle], 0, 100)
        second, end = read(sent, at, 100)
        assert (first + second, end) == (meant, len(sent)), middle


def test_no_more_messages_of_one_length_than_asked_for() -> None:
    sent, meant = together([b"four"] * 9)
    first, at = read(sent, 0, 4)
    assert first == meant[:4]
    assert read(sent, at, 100) == (meant[4:], len(sent))


def test_more_lengths_than_are_remembered() -> None:
    """Whoever sends messages of many lengths makes little work and takes no memory."""
    lengths, patterns = [SHORT_MESSAGE, *range(3 * LENGTHS), 2 * SHORT_MESSAGE], Patterns()
    sent, meant = together(bytes(length) for length in lengths * 2)
    assert cut(sent, 0, 10_000, patterns) == (meant, len(sent))
    assert len(patterns) == LENGTHS
    assert max(len(pattern.pattern) for pattern in patterns.values()) < 200


def test_a_message_that_does_not_end_where_those_before_it_did() -> None:
    sent, meant = together([b"four"] * 3)
    with pytest.raises(BadFrame, match="does not end where it says"):
        read(sent + sent[: len(sent) // 3 - 2] + b"xx", 0, 100)
    assert read(sent + sent[:20], 0, 100) == (meant, len(sent))


@pytest.mark.parametrize(
    ("sent", "offence"),
    [
        (b"x" * LONGEST_LINE, "a line of more than"),
        (b"GET / HTTP/1.1\r\n", "a line that no NATS server"),
        (b"MSG a s1 99999999999\r\n", "no number"),
        (b"MSG a s1 -1\r\n", "no number"),
        (b"MSG a s1 %d\r\n" % (LARGEST_MESSAGE + 1), "where 8388608 are allowed"),
        (b"HMSG a s1 9 8\r\n", "a message of 8 bytes"),
        (b"MSG a\r\n", "makes no sense"),
        (b"MSG a s1 b c 4\r\n", "makes no sense"),
        (b"MSG a s1 2\r\nabcd", "does not end where it says"),
    ],
)
def test_what_is_no_frame_is_an_offence(sent: bytes, offence: str) -> None:
    with pytest.raises(BadFrame, match=offence):
        read(sent, 0, 10)
