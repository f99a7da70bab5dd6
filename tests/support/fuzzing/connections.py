"""What a broker or a stream's server sends, cut apart from a buffer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from collector.links import nats
from protocol_spec.programs import packets
from tests.support.fuzzing.target import LETTERS, Target


def connections() -> list[Target]:
    """What a broker or a stream's server sends."""
    publish = b"\x32\x0f\x00\x03a/b\x00\x07payload1"
    other = b"\x20\x02\x00\x00\x90\x03\x00\x01\x01\xd0\x00"
    return [
        Target("packets_3", _reading(v5=False), [publish, other + publish, b"\x30\x02\x00\x00"]),
        Target("packets_5", _reading(v5=True), [b"\x30\x08\x00\x03a/b\x00xx", other]),
        Target("nats_frames", _nats_frames, _NATS_SEEN),
    ]


_NATS_SEEN: Final = [
    b'INFO {"max_payload": 1048576}\r\nPING\r\nPONG\r\n',
    b"HMSG $MQTT.msgs.a.v1.c.up.d.report s1 $JS.ACK.m.c.1.2.3.4.5 12 14\r\nNATS/1.0\r\n\r\nxx\r\n",
    b"HMSG a s1 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\nMSG a s1 2\r\n{}\r\n-ERR 'x'\r\n",
]


_NO_MORE: Final = {(b"", b"%d" % i): re.compile(b"") for i in range(nats.LENGTHS)}


def _nats_frames(data: bytes) -> str:
    """A buffer as the stream's connection reads it, and as it is read when no pattern is learnt."""
    try:
        found, at = nats.cut(data, 0, 1000, dict(_NO_MORE))
        assert nats.cut(data, 0, 1000, {}) == (found, at)
    except nats.BadFrame as error:
        return LETTERS.sub(" ", str(error))[:40]
    assert 0 <= at <= len(data)
    assert sum(len(f.headers) + len(f.payload) for f in found) <= at, "all of it was in the buffer"
    return ", ".join(sorted({f"{f.kind!r} {f.status} {bool(f.reply)}" for f in found}))


def _reading(*, v5: bool) -> Callable[[bytes], str]:
    """A buffer as both links read it: packet by packet, until more is needed."""

    def run(data: bytes) -> str:
        at, told = 0, []
        try:
            while (span := packets.packet_span(data, at)) is not None:
                body, end = span
                assert at < body <= end <= len(data), "a packet lies in the buffer"
                if data[at] & 0xF0 == packets.PUBLISH:
                    message = packets.read_publish(data, at, body, end, v5=v5)
                    assert len(message.payload) <= end - body
                    told.append(f"message {message.mid > 0} {message.topic is None}")
                else:
                    packets.check_control(data[at] & 0xF0, end - at)
                    told.append("control")
                at = end
            told.append(f"waits {packets.awaited(data, at) > 0}")
        except (packets.BadPacket, IndexError) as error:  # both end the connection
            told.append(LETTERS.sub(" ", str(error))[:40])
        return ", ".join(sorted(set(told)))

    return run
