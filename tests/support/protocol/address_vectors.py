"""Vectors of addresses: what an invitation names, and what is none."""

from __future__ import annotations

from typing import Any

_DIGEST = "86a56d7aa2a8b4d85d8b5a6ae4d1b6e77fd6651cc675ea01859418343f346e4b"
_NAME = "demo-86a56d7a"


def addresses() -> list[dict[str, Any]]:
    return [
        *({"address": address, "names": _names(*found)} for address, found in _GOOD.items()),
        *({"address": address, "names": None} for address in _REFUSED),
    ]


def _names(
    tls: bool, host: str, port: int, namespace: str, digest: str | None = None
) -> dict[str, Any]:
    broker = {"tls": tls, "host": host, "port": port}
    return {**broker, "namespace": namespace, "campaign": _NAME, "digest": digest}


_GOOD: dict[str, tuple[Any, ...]] = {
    f"mqtts://broker.example/allomfree/{_NAME}": (True, "broker.example", 8883, "allomfree"),
    f"mqtts://broker.example/{_NAME}": (True, "broker.example", 8883, "allomfree"),
    f"mqtts://broker.example:443/acme_1/{_NAME}": (True, "broker.example", 443, "acme_1"),
    f"mqtts://192.0.2.7/acme/{_NAME}": (True, "192.0.2.7", 8883, "acme"),
    f"mqtts://[2001:db8::7]:8884/acme/{_NAME}": (True, "2001:db8::7", 8884, "acme"),
    f"mqtts://broker.example/acme/demo-{_DIGEST}": (True, "broker.example", 8883, "acme", _DIGEST),
    f"mqtt://localhost/acme/{_NAME}": (False, "localhost", 1883, "acme"),
    f"mqtt://127.0.0.1:18830/acme/{_NAME}": (False, "127.0.0.1", 18830, "acme"),
    f"mqtt://[::1]/acme/demo-{_DIGEST}": (False, "::1", 1883, "acme", _DIGEST),
}
_REFUSED = (
    "",
    "mqtts://broker.example",
    "mqtts://broker.example/acme",
    "mqtts://broker.example/acme/demo",
    f"mqtts:///acme/{_NAME}",
    f"https://broker.example/acme/{_NAME}",
    f"broker.example/acme/{_NAME}",
    f"mqtts://me:secret@broker.example/acme/{_NAME}",
    f"mqtts://me@broker.example/acme/{_NAME}",
    f"mqtts://broker.example/acme/{_NAME}?qos=1",
    f"mqtts://broker.example/acme/{_NAME}#now",
    f"mqtts://broker.example/a/b/{_NAME}",
    f"mqtts://broker.example/Acme/{_NAME}",
    f"mqtts://broker.example/-acme/{_NAME}",
    f"mqtts://broker.example/acme/demo-{_DIGEST[:63]}",
    f"mqtts://broker.example/acme/demo-{_DIGEST}0",
    f"mqtts://broker.example/acme/demo-{_DIGEST.upper()}",
    f"mqtts://broker.example:99999/acme/{_NAME}",
    f"mqtts://broker.example:port/acme/{_NAME}",
    f"mqtt://broker.example/acme/{_NAME}",
    f"mqtt://192.0.2.7/acme/{_NAME}",
    f"mqtt://localhost.example/acme/{_NAME}",
)
