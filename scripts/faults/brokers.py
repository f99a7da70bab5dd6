"""The brokers of a run, in plain text or with certificates of an authority of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from collector.brokers.authority import Authority
from collector.brokers.config import Pair
from testbed.brokers import AS_OURSELVES, Broker, Mosquitto, Nats

EMBEDDED: Final = "embedded"
BROKERS: Final = (EMBEDDED, "nats", "mosquitto")
NAMES: Final = ("localhost", "127.0.0.1")


def make_authority(work: Path) -> str:
    """An authority, and the broker's certificate beside it; the file that everybody trusts."""
    authority = Authority(work)
    authority.issue_server(_server(work), NAMES)
    return str(authority.files.certificate)


def make_broker(kind: str, work: Path, *, secure: bool) -> Broker:
    """A broker that is not started yet."""
    return _nats(work, secure) if kind == "nats" else _mosquitto(work, secure)


def _nats(work: Path, secure: bool) -> Broker:
    made, files = Nats(work / "broker"), _server(work)
    if secure:
        made.listener = f'tls: {{ cert_file: "{files.certificate}", key_file: "{files.key}" }}'
    return made


def _mosquitto(work: Path, secure: bool) -> Broker:
    """Without bounds: what it takes it must keep, or it could not be held to it."""
    made, files = Mosquitto(work / "broker"), _server(work)
    made.extra += f"{AS_OURSELVES}max_queued_messages 0\nmax_inflight_messages 1000\n"
    if secure:
        made.extra += f"certfile {files.certificate}\nkeyfile {files.key}\n"
    return made


def _server(work: Path) -> Pair:
    return Pair(work / "server.crt", work / "server.key")
