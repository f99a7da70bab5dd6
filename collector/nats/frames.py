"""What a NATS server sends, cut out of a buffer: lines, and messages whose lengths are checked.

A line may be so long and a message so large, and not a byte more is waited for (A5).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LONGEST_LINE: Final = 1 << 16  # INFO of a large cluster is the longest
LARGEST_MESSAGE: Final = 1 << 23  # with its headers; NATS's own default is a megabyte
_CRLF: Final = b"\r\n"
SHORT_MESSAGE: Final = 1 << 14  # up to which messages of one length are cut out together
LENGTHS: Final = 64  # for which that is done
# The first line of a message as a stream delivers it; what is not so is looked at word by word.
_NAME: Final = rb"[^ \r\n]{1,4096}"
_DELIVERED: Final = re.compile(
    rb"HMSG (%b) %b (%b) ([0-9]{1,9}) ([0-9]{1,9})\r\n" % (_NAME, _NAME, _NAME)
)
_SPOKEN: Final = (b"PING", b"PONG", b"+OK", b"INFO", b"-ERR")


class BadFrame(ValueError):
    """The server sent something that is not NATS, or more than anybody asked for."""


class Frame(NamedTuple):
    """A message (`kind` is MSG), or a line: its first word, and the rest of it as payload."""

    kind: bytes
    subject: bytes = b""
    reply: bytes = b""
    headers: bytes = b""
    payload: bytes = b""

    @property
    def status(self) -> int:
        """What the server says instead of a message: 404, 408, 409, 503; 0 for a message."""
        words = self.headers[:32].split(b" ", 2)
        code = words[1][:3] if len(words) > 1 and words[0] == b"NATS/1.0" else b""
        return int(code) if code.isdigit() else 0

    def header(self, name: bytes) -> bytes:
        """The value of a header; empty without it."""
        _, found, rest = self.headers.partition(_CRLF + name + b":")
        return rest.partition(_CRLF)[0].strip() if found else b""


_new: Final = tuple.__new__  # makes a named tuple in a third of the time

# How whole messages look that have so many bytes of headers and in all, as these are written.
Patterns = dict[tuple[bytes, bytes], re.Pattern[bytes]]


def cut(buffer: bytes, at: int, most: int, patterns: Patterns) -> tuple[list[Frame], int]:
    """At most so many whole frames from a position on, and where the next one begins.

    Patterns are learnt, up to `LENGTHS` of them, and spare most of the work.
    """
    frames: list[Frame] = []
    while len(frames) < most:
        usual = _DELIVERED.match(buffer, at, at + LONGEST_LINE)
        if usual is not None:
            subject, reply, head, total = usual.groups()
            pattern = _pattern(head, total, patterns)
            alike, after = _cut_alike(buffer, at, pattern, most - len(frames))
            if alike:
                frames += alike
                at = after
                continue
            frame, after = _whole(buffer, usual.end(), subject, reply, int(head), int(total))
        else:
            frame, after = _other(buffer, at)
        if frame is None:
            break
        frames.append(frame)
        at = after
    return frames, at


def _cut_alike(
    buffer: bytes, at: int, pattern: re.Pattern[bytes] | None, most: int
) -> tuple[list[Frame], int]:
    """Messages one behind the other that are of the same length, as reports of a campaign are."""
    frames: list[Frame] = []
    while pattern is not None and len(frames) < most:
        found = pattern.match(buffer, at)
        if found is None:
            break
        frames.append(_new(Frame, found.groups()))
        at = found.end()
    return frames, at


def _pattern(head: bytes, total: bytes, patterns: Patterns) -> re.Pattern[bytes] | None:
    """Of a message of that length, its parts in the order of a `Frame`; None if it is too long, or
    if too many other lengths came before."""
    size, rest = int(head), int(total) - int(head)
    known = patterns.get((head, total))
    if known is None and len(patterns) < LENGTHS and 0 <= rest <= SHORT_MESSAGE - size:
        line = rb"H(MSG) (%b) %b (%b) %b %b\r\n" % (_NAME, _NAME, _NAME, head, total)
        known = re.compile(line + rb"(.{%d})(.{%d})\r\n" % (size, rest), re.DOTALL)
        patterns[head, total] = known
    return known


def _other(buffer: bytes, at: int) -> tuple[Frame | None, int]:
    """A line, or a message whose first line is not the usual one."""
    end = buffer.find(_CRLF, at, at + LONGEST_LINE)
    if end < 0:
        if len(buffer) - at >= LONGEST_LINE:
            raise BadFrame(f"a line of more than {LONGEST_LINE} bytes")
        return None, at
    if buffer[at : at + 5] == b"HMSG " or buffer[at : at + 4] == b"MSG ":
        return _message(buffer, at, end)
    return _line(buffer[at:end]), end + 2


def _message(buffer: bytes, at: int, end: int) -> tuple[Frame | None, int]:
    """A message and where it ends, or None while it is incomplete."""
    has_headers = buffer[at] == 0x48
    words = buffer[at:end].split(b" ")
    numbers = words[-2:] if has_headers else [b"0", words[-1]]
    if len(words) not in ((5, 6) if has_headers else (4, 5)):
        raise BadFrame("a message whose first line makes no sense")
    if not all(number.isdigit() and len(number) < 10 for number in numbers):
        raise BadFrame("a message whose length is no number")
    reply = words[3] if len(words) == (6 if has_headers else 5) else b""
    return _whole(buffer, end + 2, words[1], reply, int(numbers[0]), int(numbers[1]))


def _whole(
    buffer: bytes, start: int, subject: bytes, reply: bytes, head: int, total: int
) -> tuple[Frame | None, int]:
    """A message whose headers begin at a place, with so many bytes of these and in all."""
    if head > total or total > LARGEST_MESSAGE:
        raise BadFrame(f"a message of {total} bytes, where {LARGEST_MESSAGE} are allowed")
    stop = start + total
    if len(buffer) < stop + 2:
        return None, start
    if buffer[stop : stop + 2] != _CRLF:
        raise BadFrame("a message that does not end where it says")
    body = start + head
    row = (b"MSG", subject, reply, buffer[start:body], buffer[body:stop])
    return _new(Frame, row), stop + 2


def _line(line: bytes) -> Frame:
    kind, _, rest = line.partition(b" ")
    kind = kind.upper()
    if kind not in _SPOKEN:
        raise BadFrame("a line that no NATS server has reason to send")
    return Frame(kind, payload=rest)
