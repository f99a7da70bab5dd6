"""What a NATS server sends is measured before anything is kept of it (A5)."""

from __future__ import annotations

import pytest

from collector.nats.frames import LARGEST_MESSAGE, LONGEST_LINE, BadFrame, Frame, cut

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


def test_frames_are_cut_apart() -> None:
    assert cut(SENT, 0, 100) == (MEANT, len(SENT))


def test_in_any_two_parts() -> None:
    for middle in range(len(SENT)):
        first, at = cut(SENT[:middle], 0, 100)
        second, end = cut(SENT, at, 100)
        assert first + second == MEANT
        assert end == len(SENT)


def test_no_more_than_asked_for() -> None:
    first, at = cut(SENT, 0, 2)
    assert first == MEANT[:2]
    assert cut(SENT, at, 1)[0] == MEANT[2:3]


def test_a_status_and_its_headers_can_be_read() -> None:
    frame = MEANT[5]
    assert frame.status == 409
    assert frame.header(b"Nats-Pending-Messages") == b"95"
    assert frame.header(b"Other") == b""
    assert [f.status for f in MEANT if f is not frame] == [0] * 6


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
        cut(sent, 0, 10)
