"""S2: every decoder, parser and packet reader, over hostile bytes.

Whatever others can send or write is read by some function of ours: messages, manifests, topics,
addresses, settings, values of sources, packets, parts of web addresses, our own status files. For
any bytes at all such a function must give a result or a refusal that it declares; nothing may
crash, hang, grow, or have two forms where the protocol knows one.

Each target is tried over its seeds, over its inputs in corpus.json (as Latin-1 text), and over
some hundreds of mutated inputs, the same ones every time. To fuzz for ten minutes a target, and to
try one input again:

    FUZZ_SECONDS=600 pytest tests/fuzz --timeout 0
    FUZZ_INPUT=300078 pytest tests/fuzz -k packets_5

A longer run adds inputs that did something new (another outcome, another refusal) to the corpus;
commit them. After a fault, fix it and add its input to the target's seeds. A new target is a
function that takes bytes and returns what came of them in a few words, with two or three good
inputs as seeds. See it fail: break a check of the function it is about, and run it.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final, NamedTuple

import pytest

from collector import health
from collector.brokers.config import host_name
from collector.errors import CollectorError
from collector.links import nats
from collector.results.facts import read_truth
from collector.settings import parse_streams
from collector.settings import resolve as collector_settings
from collector.web.app import read_parameters
from collector.web.live import origin
from edge_client import language, status
from edge_client.errors import EdgeError
from edge_client.settings import resolve as edge_settings
from edge_client.sources import build
from protocol_spec import Manifest, ManifestError, ParameterError, Rejected, decode_signature
from protocol_spec.errors import quoted, shown
from protocol_spec.fields import parse_duration
from protocol_spec.programs import packets
from protocol_spec.programs.invitation import parse_device_invitation
from protocol_spec.programs.output import json_escaped
from protocol_spec.programs.settings import (
    SettingsError,
    parse_broker,
    parse_brokers,
    parse_digest,
    parse_invitation,
    parse_only_broker,
)
from protocol_spec.topics import check_namespace, is_campaign, parse_from_device
from tests.support.campaigns import manifest_text
from tests.support.harness import ROOT
from tests.support.hostile import HOSTILE, hidden_in
from tests.support.protocol import vectors
from tests.support.protocol.helpers import DECODERS

CORPUS: Final = Path(__file__).with_name("corpus.json")
MUTATED: Final = 400  # inputs of each target beyond those that are known
LONGEST: Final = 4096  # bytes of an input
LARGEST_KEPT: Final = 512  # bytes of an input in the corpus
MOST_KEPT: Final = 40  # inputs of a target in the corpus
LETTERS: Final = re.compile(r"[^a-z ]+", re.IGNORECASE)  # what is left out of words about an input
ODD: Final = (
    b"\0", b"\xff", b"\x7f", b"\x80", b"\xc0", b"\xc1", b"\xd9\xff", b"\xdb\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\0" * 7,
    b"\xcb\x7f\xf0" + b"\0" * 6, b"\xcb\x7f\xf8" + b"\0" * 6, b"\xcb\x80" + b"\0" * 7,
    b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x01", b"\xed\xa0\x80", b"\xe2\x80\xae", b"\x1b[2J",
    b"\xf3\xa0\x81\x81", b"9" * 30, b"1e999", b"nan", b"-0", b"[[", b"{", b'"', b"'''", b"\n", b"/",
    b"..", b"+", b"#", b"%00", b"@", b":",
)  # fmt: skip


class Target(NamedTuple):
    """`run` takes any bytes and returns what came of them in a few words.

    It raises for what must never happen: an exception that nobody declared, or a broken promise,
    such as a message with two encodings. Words that were not seen before mean that the input did
    something new; the loop keeps such inputs and goes on from them.
    """

    run: Callable[[bytes], str]
    seeds: list[bytes]
    words: tuple[bytes, ...] = ODD  # that inputs of this kind are made of


def fuzz(
    target: Target, pool: list[bytes], dice: random.Random, *, inputs: int = 0, seconds: float = 0
) -> list[bytes]:
    """Run the pool, then mutate it again and again; the inputs that did something new."""

    def run(data: bytes) -> str:
        try:
            return target.run(data)
        except Exception as error:
            error.add_note(f"repeat with FUZZ_INPUT={data.hex()}")
            raise

    seen = {run(data) for data in pool}
    new, tries, ends = [], 0, time.monotonic() + seconds
    while tries < inputs or time.monotonic() < ends:
        data = mutated(pool, target.words, dice)
        outcome = run(data)
        tries += 1
        if outcome not in seen:
            seen.add(outcome)
            pool.append(data)
            new.append(data)
    return new


def mutated(pool: list[bytes], words: tuple[bytes, ...], dice: random.Random) -> bytes:
    """One of the pool after one to four changes, perhaps joined with another of it."""
    data = dice.choice(pool)
    for _ in range(dice.choice((1, 1, 2, 4))):
        start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
        other = dice.choice(pool)
        flipped = bytes(byte ^ 1 << dice.randrange(8) for byte in data[start : start + 1])
        data = dice.choice(
            (
                data[:start] + flipped + data[start + 1 :],
                data[:start] + dice.randbytes(dice.choice((1, 1, 8))) + data[start + 1 :],
                data[:start] + data[end:],
                data[:end],
                data[:end] + data[start:end] * dice.choice((1, 2, 40)) + data[end:],
                data[:start] + dice.choice(ODD) + data[start:],
                data[:start] + other[dice.randrange(len(other) + 1) :],
                data[:start] + dice.choice(words) + data[start + dice.randrange(3) :],
            )
        )
    return data[:LONGEST]


# Between quotation marks; paths; names before what is said of them, and of tables.
_QUOTED: Final = re.compile(
    r"'.*'|\S*/\S*|\S.* (?=(is not a|must be a table))|\[.*\]|(policy|sources)\..*?(?=[:=])"
)
REFUSALS: Final = (SettingsError, ParameterError, ManifestError, CollectorError, EdgeError)


def kind_of(error: Exception) -> str:
    """A refusal without what it quotes: the words of its first line that are always the same."""
    first = _QUOTED.sub(" ", str(error).split("\n", maxsplit=1)[0])
    return f"{type(error).__name__} {' '.join(LETTERS.sub(' ', first).split())[:60]}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def targets(place: Path) -> dict[str, Target]:
    """By name; those that read files do so in a directory of their own."""
    found: dict[str, list[bytes]] = {}
    for entries in vectors.load("messages.json").values():
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and {"kind", "hex"} <= entry.keys():
                found.setdefault(entry["kind"], []).append(bytes.fromhex(entry["hex"]))
    decoders = {**DECODERS, "signature": decode_signature}
    made = {
        f"decode_{kind}": Target(_decoding(decode), found.get(kind, []) or [b"\x90"])
        for kind, decode in decoders.items()
    }
    good = [bytes.fromhex(entry["hex"]) for entry in vectors.load("manifests.json")["good"]]
    written = manifest_text(slug="heat").encode()
    address = b"mqtts://broker.example:8883/allomfree/home-heat-1a2b3c4d"
    topic = b"allomfree/v1/home-heat-1a2b3c4d/up/kitchen/report"
    receipt = b"allomfree/v1/home-heat-1a2b3c4d/pub/receipts/12/3"
    hostile = [text[:300].encode("utf-8", "surrogatepass") for text in HOSTILE]
    settings = b'log_level = "info"\nkeepalive = 30\nusername = "kitchen"\n'
    policy = b"[policy]\nmax_eps_inf = 2.0\nsources = ['fuel']\n[sources.fuel]\nvalue = 'gas'\n"
    words = (b"true", b"[policy]", b"[sources.a]", b"kind", b"=", b'"', b"\n", b"-1")
    beat = b'{"pid": %d, "state": "x", "queued": 1, "at": 1, "memory": 5, "trouble": ""}'
    beats = [beat % 1, beat % 99_999_999_999, beat.replace(b'"x"', b'["x"]') % 1, b"[" * 9000]
    publish = b"\x32\x0f\x00\x03a/b\x00\x07payload1"
    other = b"\x20\x02\x00\x00\x90\x03\x00\x01\x01\xd0\x00"
    frames = [
        b'INFO {"max_payload": 1048576}\r\nPING\r\nPONG\r\n',
        (
            b"HMSG $MQTT.msgs.a.v1.c.up.d.report s1 $JS.ACK.m.c.1.2.3.4.5 12 14\r\n"
            b"NATS/1.0\r\n\r\nxx\r\n"
        ),
        b"HMSG a s1 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\nMSG a s1 2\r\n{}\r\n-ERR 'x'\r\n",
    ]
    return made | {
        "manifest_msgpack": Target(_manifest_bytes, [data for data in good if len(data) < 2000]),
        "manifest_toml": Target(
            _manifest_toml, [written], tuple(re.findall(rb"\w+|[^\w\s]", written))
        ),
        "address": Target(_address, [address, b"mqtt://[::1]:1", address + b"#" + b"ab" * 32]),
        "topic": Target(_topic, [topic, receipt], (b"/", b"+", b"#", b"allomfree", b"v1")),
        "name": Target(_name, [b"home-heat-1a2b3c4d", b"broker.example", b"6h", b"fe80::1%eth0"]),
        "shown": Target(_shown, hostile),
        "planner_query": Target(_planner, [b"k=5&n=100&eps_inf=2&eps_1=0.5"], (b"&", b"=", b"d")),
        "edge_settings": Target(
            _settings(place / "edge.toml", edge_settings),
            [settings, policy, settings + policy],
            words,
        ),
        "collector_settings": Target(
            _settings(place / "collector.toml", collector_settings),
            [settings, b'listen = "127.0.0.1:9180"\n'],
            words,
        ),
        "json_source": Target(
            _json_source(place / "value.json"), [b'{"a": {"b": ["wood", 1]}}', b"[" * 3000]
        ),
        "edge_heartbeat": Target(
            _heartbeat(place, status.HEARTBEAT_FILE, status.last_heartbeat), beats
        ),
        "collector_heartbeat": Target(
            _heartbeat(place, health.HEARTBEAT_FILE, health.examine), beats
        ),
        "truth": Target(_truth(place), [b'{"fuel": [0.5, 0.5]}']),
        "packets_3": Target(_reading(v5=False), [publish, other + publish, b"\x30\x02\x00\x00"]),
        "packets_5": Target(_reading(v5=True), [b"\x30\x08\x00\x03a/b\x00xx", other]),
        "nats_frames": Target(_nats_frames, frames),
    }


# --- messages and manifests -----------------------------------------------------------------------


def _decoding(decode: Callable[[bytes], Any]) -> Callable[[bytes], str]:
    def run(data: bytes) -> str:
        found = decode(data)
        if isinstance(found, Rejected):
            return f"{found.outcome} {LETTERS.sub(' ', str(found))[:60]}"
        assert found.encode() == data, "a message has one encoding"
        return f"good, {len(data).bit_length()} bits long"

    return run


def _manifest_bytes(data: bytes) -> str:
    try:
        found = Manifest.from_bytes(data)
    except ManifestError as error:
        return _problems(error)
    assert found.to_bytes() == data, "a manifest has one encoding"
    return f"good {found.format} {found.reporting}"


def _manifest_toml(data: bytes) -> str:
    try:
        found = Manifest.from_toml(_text(data))
    except ManifestError as error:
        return _problems(error)
    assert Manifest.from_bytes(found.to_bytes()) == found, "what is written can be read"
    return f"good {found.format} {found.reporting}"


def _problems(error: ManifestError) -> str:
    assert not hidden_in(str(error)), "an error shows no hidden character"
    assert len(str(error)) < 10_000, "an error is short"
    problem = error.problems[0]
    return f"{LETTERS.sub(' ', problem.field)[:20]}: {LETTERS.sub(' ', problem.remedy)[:40]}"


# --- texts ----------------------------------------------------------------------------------------


_ADDRESSES: Final = (
    *(parse_broker, parse_only_broker, parse_brokers),
    *(parse_invitation, parse_device_invitation, parse_digest),
)


def _address(data: bytes) -> str:
    text, outcomes = _text(data), []
    for parse in _ADDRESSES:
        try:
            parse(text)
            outcomes.append("good")
        except SettingsError as error:
            outcomes.append(kind_of(error)[:40])
    for setting in (parse_streams, language.parse_language):
        with suppress(ValueError):  # what a setting is refused with
            outcomes.append(str(setting(text)))
    return ", ".join(outcomes)


def _topic(data: bytes) -> str:
    text = _text(data)
    origin_of = parse_from_device(text)
    try:
        namespace = str(check_namespace(text) == text)
    except ParameterError:
        namespace = "none"
    kind = origin_of.kind if origin_of else None
    return f"{kind} {namespace} {is_campaign(text)}"


def _name(data: bytes) -> str:
    text = _text(data)
    with suppress(SettingsError):
        return f"host {len(host_name(text)).bit_length()}"
    return f"{parse_duration(text) is None} {origin(text) == text}"


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "surrogatepass") if _is_text(data) else _text(data)
    for output in (shown(text), quoted(text), quoted([text, {text: text}])):
        assert not hidden_in(output) - _VISIBLE, "nothing hidden is left"
        assert len(output) <= 240
    line = json_escaped(json.dumps(text, ensure_ascii=False))
    assert json.loads(line) == text, "JSON means the same"
    assert not hidden_in(line) - _VISIBLE
    return f"{shown(text) == text} {len(text).bit_length()}"


# Format characters that are visible: signs around numbers and in rare scripts.
_VISIBLE: Final = frozenset(
    map(chr, (*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, *range(0xFFF9, 0xFFFC)))
) | frozenset(map(chr, (0x110BD, 0x110CD, *range(0x13430, 0x13440))))


def _is_text(data: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        data.decode("utf-8", "surrogatepass")
        return True
    return False


def _planner(data: bytes) -> str:
    pairs = (pair.partition("=") for pair in _text(data).split("&"))
    try:
        read_parameters({name: value for name, _, value in pairs})
    except ParameterError as error:
        return f"{len(str(error)) < 1000} {error.field} {LETTERS.sub(' ', error.remedy)[:40]}"
    return "good"


# --- files ----------------------------------------------------------------------------------------


def _settings(file: Path, resolve: Callable[..., Any]) -> Callable[[bytes], str]:
    def run(data: bytes) -> str:
        file.write_bytes(data)
        try:
            found = resolve({}, config=file, environ={"HOME": str(file.parent)})
            for name, options in getattr(found, "sources", {}).items():
                build(name, options)
        except REFUSALS as error:
            return kind_of(error)
        return "good"

    return run


def _json_source(file: Path) -> Callable[[bytes], str]:
    source = build("fuel", {"kind": "json", "file": str(file), "field": "a.b.0"})

    def run(data: bytes) -> str:
        file.write_bytes(data)
        try:
            return f"good {type(source.read()).__name__}"
        except EdgeError as error:
            return kind_of(error)

    return run


def _heartbeat(place: Path, name: str, read: Callable[[Path], object]) -> Callable[[bytes], str]:
    """Written by our own program, but a disk may give back anything."""

    def run(data: bytes) -> str:
        (place / name).write_bytes(data)
        found = read(place)
        return type(found).__name__ + ("" if found is None else str(getattr(found, "well", "")))

    return run


def _truth(place: Path) -> Callable[[bytes], str]:
    def run(data: bytes) -> str:
        (place / "truth-heat.json").write_bytes(data)
        try:
            return f"good {len(read_truth(place, 'heat') or ())}"
        except CollectorError as error:
            return kind_of(error)

    return run


# --- connections ----------------------------------------------------------------------------------


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
        at, outcomes = 0, []
        try:
            while (span := packets.packet_span(data, at)) is not None:
                body, end = span
                assert at < body <= end <= len(data), "a packet lies in the buffer"
                if data[at] & 0xF0 == packets.PUBLISH:
                    message = packets.read_publish(data, at, body, end, v5=v5)
                    assert len(message.payload) <= end - body
                    outcomes.append(f"message {message.mid > 0} {message.topic is None}")
                else:
                    packets.check_control(data[at] & 0xF0, end - at)
                    outcomes.append("control")
                at = end
            outcomes.append(f"waits {packets.awaited(data, at) > 0}")
        except (packets.BadPacket, IndexError) as error:  # both end the connection
            outcomes.append(LETTERS.sub(" ", str(error))[:40])
        return ", ".join(sorted(set(outcomes)))

    return run


# --- tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(targets(Path(gettempdir()))))
def test_no_input_breaks_it(name: str, tmp_path: Path) -> None:
    corpus: dict[str, list[str]] = json.loads(CORPUS.read_text(encoding="ascii"))
    target, known = targets(tmp_path)[name], corpus.get(name, [])
    pool = [*target.seeds, *(text.encode("latin-1") for text in known), b""]
    if "FUZZ_INPUT" in os.environ:
        target.run(bytes.fromhex(os.environ["FUZZ_INPUT"]))
    elif seconds := float(os.environ.get("FUZZ_SECONDS", "0")):
        new = fuzz(target, pool, random.Random(), seconds=seconds)
        small = [data.decode("latin-1") for data in new if len(data) <= LARGEST_KEPT]
        corpus[name] = sorted({*known, *small[: max(0, MOST_KEPT - len(known))]})
        CORPUS.write_text(json.dumps(corpus, indent=0, sort_keys=True) + "\n", encoding="ascii")
    else:
        fuzz(target, pool, random.Random(name), inputs=MUTATED)


def test_every_decoder_and_parser_has_a_target() -> None:
    """Public functions called `decode_…`, `parse_…`, and what reads packets, are all fuzzed."""
    named = Path(__file__).read_text(encoding="utf-8") + " ".join(map(str, DECODERS.values()))
    wanted = re.compile(r"^def ((?:decode_|parse_|read_publish|packet_span)\w*)\(", re.M)
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in ("protocol_spec", "edge_client", "collector")
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in wanted.findall(path.read_text(encoding="utf-8"))
        if name not in named
    ]
    assert missing == []
