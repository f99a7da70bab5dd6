"""Fuzzing without a tool: replay what is known, then change it again and again, and keep what does
something new. An input is new if what came of it, in words, was not seen before (S2)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

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
from protocol_spec.fields import parse_duration
from protocol_spec.programs import packets
from protocol_spec.programs.output import json_escaped
from protocol_spec.programs.settings import (
    SettingsError,
    parse_broker,
    parse_brokers,
    parse_campaign,
    parse_digest,
    parse_invitation,
    parse_only_broker,
)
from protocol_spec.shown import quoted, shown
from protocol_spec.topics import check_namespace, is_campaign, parse_from_device, parse_receipt
from tests.support.campaigns import manifest_text
from tests.support.harness import ROOT
from tests.support.hostile import HOSTILE, hidden_in
from tests.support.protocol import vectors
from tests.support.protocol.decoders import DECODERS

CORPUS: Final = ROOT / "tests" / "fuzz" / "corpus"  # a file for each target, a line for each input
LARGEST_KEPT: Final = 512  # bytes of an input in the corpus
MOST_KEPT: Final = 40  # inputs of a target; a run that finds more changes those it has
LETTERS: Final = re.compile(r"[^a-z ]+", re.IGNORECASE)  # what is left out of words about an input


@dataclass(frozen=True, slots=True)
class Target:
    """`run` takes any bytes and returns what came of them in a few words.

    It raises for what must never happen: an exception that nobody declared, or a broken promise,
    such as a message with two encodings. Words that were not seen before mean that the input did
    something new; the loop keeps such inputs and goes on from them.
    """

    name: str
    run: Callable[[bytes], str]
    seeds: list[bytes] = field(default_factory=list)
    words: list[bytes] = field(default_factory=list)  # that inputs of this kind are made of


class Broken(AssertionError):
    """An input for which something happened that must not; the message says how to repeat it."""


def corpus(target: Target) -> list[bytes]:
    """Inputs that did something new once, in a fixed order."""
    file = CORPUS / f"{target.name}.txt"
    lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
    return [line.encode().decode("unicode_escape").encode("latin-1") for line in lines]


def keep(target: Target, inputs: Sequence[bytes]) -> None:
    """Add inputs to the corpus."""
    kept = {*corpus(target), *inputs}
    lines = sorted(data.decode("latin-1").encode("unicode_escape").decode() for data in kept)
    (CORPUS / f"{target.name}.txt").write_text("\n".join([*lines, ""]), encoding="ascii")


def tried(target: Target, data: bytes) -> str:
    """What came of one input; `Broken` with the input if it must not be."""
    try:
        return target.run(data)
    except Exception as error:
        raise Broken(
            f"{target.name}: {type(error).__name__}: {error}\n"
            f"repeat with: python tests/fuzz/run.py --target {target.name} --input {data.hex()}"
        ) from error


@dataclass(slots=True)
class Session:
    """One run over one target."""

    target: Target
    dice: random.Random
    seen: set[str] = field(default_factory=set)
    pool: list[bytes] = field(default_factory=list)

    def replay(self) -> None:
        """Everything known."""
        for data in (*self.target.seeds, *corpus(self.target), b""):
            self.seen.add(tried(self.target, data))
            self.pool.append(data)

    def new(self) -> Iterator[bytes | None]:
        """Endlessly: an input that did something new, or None after one that did not."""
        for _ in count():
            data = mutated(self.pool, self.target.words, self.dice)
            outcome = tried(self.target, data)
            if outcome in self.seen:
                yield None
            else:
                self.seen.add(outcome)
                self.pool.append(data)
                yield data


# --- changed inputs -------------------------------------------------------------------------------

LONGEST: Final = 4096
ODD: Final = (
    b"\0", b"\xff", b"\x7f", b"\x80", b"\xc0", b"\xc1", b"\xd9\xff", b"\xdb\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\0" * 7,
    b"\xcb\x7f\xf0" + b"\0" * 6, b"\xcb\x7f\xf8" + b"\0" * 6, b"\xcb\x80" + b"\0" * 7,
    b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x01", b"\xed\xa0\x80", b"\xe2\x80\xae", b"\x1b[2J",
    b"\xf3\xa0\x81\x81", b"9" * 30, b"1e999", b"nan", b"-0", b"[[", b"{", b'"', b"'''", b"\n", b"/",
    b"..", b"+", b"#", b"%00", b"@", b":",
)  # fmt: skip

Change = Callable[[bytes, random.Random], bytes]


def _flip(data: bytes, dice: random.Random) -> bytes:
    if not data:
        return dice.randbytes(dice.randrange(1, 9))
    place = dice.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << dice.randrange(8)]) + data[place + 1 :]


def _set(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data) + 1)
    return data[:place] + dice.randbytes(1) + data[place + 1 :]


def _cut(data: bytes, dice: random.Random) -> bytes:
    start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + data[end:]


def _end(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[start:end] * dice.choice((1, 2, 40)) + data[end:]


def _insert(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data) + 1)
    return data[:place] + dice.choice(ODD) + data[place:]


CHANGES: Final[tuple[Change, ...]] = (_flip, _set, _cut, _end, _repeat, _insert)


def mutated(pool: Sequence[bytes], words: Sequence[bytes], dice: random.Random) -> bytes:
    """One of the pool after one to four changes, perhaps joined with another of it."""
    data = dice.choice(pool)
    for _ in range(dice.choice((1, 1, 2, 4))):
        chance = dice.random()
        if chance < 0.1:
            other = dice.choice(pool)
            data = data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]
        elif chance < 0.25 and words:
            place = dice.randrange(len(data) + 1)
            data = data[:place] + dice.choice(words) + data[place + dice.randrange(3) :]
        else:
            data = dice.choice(CHANGES)(data, dice)
    return data[:LONGEST]


# --- targets: every decoder, parser and packet reader of the product ------------------------------


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


def all_targets(place: Path) -> dict[str, Target]:
    """By name; those that read files do so in a directory of their own."""
    made = [*_messages(), *_manifests(), *_texts(), *_files(place), *_connections()]
    return {target.name: target for target in made}


# --- messages -------------------------------------------------------------------------------------


def _messages() -> list[Target]:
    seeds = _message_seeds()
    decoders = {**DECODERS, "signature": decode_signature}
    return [
        Target(f"decode_{kind}", _decoding(decode), seeds.get(kind, []) or [b"\x90"])
        for kind, decode in decoders.items()
    ]


def _message_seeds() -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for entries in vectors.load("messages.json").values():
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and {"kind", "hex"} <= entry.keys():
                found.setdefault(entry["kind"], []).append(bytes.fromhex(entry["hex"]))
    return found


def _decoding(decode: Callable[[bytes], Any]) -> Callable[[bytes], str]:
    def run(data: bytes) -> str:
        found = decode(data)
        if isinstance(found, Rejected):
            return f"{found.outcome} {LETTERS.sub(' ', str(found))[:60]}"
        assert found.encode() == data, "a message has one encoding"
        return f"good, {len(data).bit_length()} bits long"

    return run


# --- manifests ------------------------------------------------------------------------------------


def _manifests() -> list[Target]:
    good = [bytes.fromhex(entry["hex"]) for entry in vectors.load("manifests.json")["good"]]
    short = [data for data in good if len(data) < 2000]
    written = manifest_text(slug="heat").encode()
    words = [w.encode() for w in re.findall(r"\w+|[^\w\s]", written.decode())]
    return [
        Target("manifest_msgpack", _manifest_bytes, short),
        Target("manifest_toml", _manifest_toml, [written], words),
    ]


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


def _texts() -> list[Target]:
    hostile = [text[:300].encode("utf-8", "surrogatepass") for text in HOSTILE]
    address = b"mqtts://broker.example:8883/allomfree/home-heat-1a2b3c4d"
    topic = b"allomfree/v1/home-heat-1a2b3c4d/up/kitchen/report"
    receipt = b"allomfree/v1/home-heat-1a2b3c4d/pub/receipts/12/3"
    return [
        Target("address", _address, [address, b"mqtt://[::1]:1", address + b"#" + b"ab" * 32]),
        Target("topic", _topic, [topic, receipt], [b"/", b"+", b"#", b"allomfree", b"v1"]),
        Target("name", _name, [b"home-heat-1a2b3c4d", b"broker.example", b"6h", b"fe80::1%eth0"]),
        Target("shown", _shown, hostile),
        Target("planner_query", _planner, [b"k=5&n=100&eps_inf=2&eps_1=0.5"], [b"&", b"=", b"d"]),
    ]


_ADDRESSES: Final = (
    *(parse_broker, parse_only_broker, parse_brokers),
    *(parse_campaign, parse_invitation, parse_digest),
)


def _address(data: bytes) -> str:
    text, told = _text(data), []
    for parse in _ADDRESSES:
        try:
            parse(text)
            told.append("good")
        except SettingsError as error:
            told.append(kind_of(error)[:40])
    for setting in (parse_streams, language.parse_language):
        with suppress(ValueError):  # what a setting is refused with
            told.append(str(setting(text)))
    return ", ".join(told)


def _topic(data: bytes) -> str:
    text = _text(data)
    origin_of, receipt = parse_from_device(text), parse_receipt(text)
    try:
        namespace = str(check_namespace(text) == text)
    except ParameterError:
        namespace = "none"
    kind = origin_of.kind if origin_of else None
    return f"{kind} {receipt is not None} {namespace} {is_campaign(text)}"


def _name(data: bytes) -> str:
    text = _text(data)
    with suppress(SettingsError):
        return f"host {len(host_name(text)).bit_length()}"
    return f"{parse_duration(text) is None} {origin(text) == text}"


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "surrogatepass") if _is_text(data) else _text(data)
    for told in (shown(text), quoted(text), quoted([text, {text: text}])):
        assert not hidden_in(told) - _SEEN, "nothing hidden is left"
        assert len(told) <= 240
    line = json_escaped(json.dumps(text, ensure_ascii=False))
    assert json.loads(line) == text, "JSON means the same"
    assert not hidden_in(line) - _SEEN
    return f"{shown(text) == text} {len(text).bit_length()}"


# Format characters that are seen: signs around numbers and in rare scripts.
_SEEN: Final = frozenset(
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


def _files(place: Path) -> list[Target]:
    settings = b'log_level = "info"\nkeepalive = 30\nusername = "kitchen"\n'
    policy = b"[policy]\nmax_eps_inf = 2.0\nsources = ['fuel']\n[sources.fuel]\nvalue = 'gas'\n"
    beat = b'{"pid": %d, "state": "x", "queued": 1, "at": 1, "memory": 5, "trouble": ""}'
    seen = [beat % 1, beat % 99_999_999_999, beat.replace(b'"x"', b'["x"]') % 1, b"[" * 9000]
    words = [w.encode() for w in ("true", "[policy]", "[sources.a]", "kind", "=", '"', "\n", "-1")]
    return [
        Target("edge_settings", _settings(place / "edge.toml", edge_settings),
               [settings, policy, settings + policy], words),
        Target("collector_settings", _settings(place / "collector.toml", collector_settings),
               [settings, b'listen = "127.0.0.1:9180"\n'], words),
        Target("json_source", _json_source(place / "value.json"),
               [b'{"a": {"b": ["wood", 1]}}', b"[" * 3000]),
        Target("edge_heartbeat",
               _heartbeat(place, status.HEARTBEAT_FILE, status.last_heartbeat), seen),
        Target("collector_heartbeat",
               _heartbeat(place, health.HEARTBEAT_FILE, health.examine), seen),
        Target("truth", _truth(place), [b'{"fuel": [0.5, 0.5]}']),
    ]  # fmt: skip


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


def _connections() -> list[Target]:
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
