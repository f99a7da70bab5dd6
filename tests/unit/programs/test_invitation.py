"""A device's invitation: the same as file and link, and what is not one is refused."""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from protocol_spec.programs.invitation import (
    LARGEST,
    DeviceInvitation,
    NotAnInvitation,
    parse_device_invitation,
    read_invitation,
)
from protocol_spec.programs.settings import Credentials

CAMPAIGN = "home-heat-" + "1a2b3c4d" * 8
INVITATION = DeviceInvitation(
    ("mqtts://broker.example:8883", "mqtts://10.0.0.1:8883"),
    "allomfree",
    "kitchen",
    CAMPAIGN,
    password="secret-word",  # noqa: S106 - of a broker that is not there
    authority="-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    labels={"region": "north", "firmware": "1.2 beta"},
    exchange=True,
    expires=1_800_000_000,
)


def link(document: object) -> str:
    packed = zlib.compress(json.dumps(document).encode())
    return "allomfree:" + base64.urlsafe_b64encode(packed).decode()


def test_file_and_link_hold_the_same(tmp_path: Path) -> None:
    bare = DeviceInvitation(("mqtts://b.example:1",), "allomfree", "kitchen")
    for each in (INVITATION, bare):
        file = tmp_path / "kitchen.invitation"
        file.write_text(each.text())
        assert read_invitation(file) == each
        assert parse_device_invitation(f" {each.as_link()}\n") == each
    assert INVITATION.link == f"mqtts://broker.example:8883/allomfree/{CAMPAIGN}"
    assert "secret-word" not in repr(INVITATION)


def test_what_a_connection_needs_is_stored_privately(tmp_path: Path) -> None:
    place = tmp_path / "broker"
    kept = replace(INVITATION, certificate="CERT", key="KEY").store(place)
    files = [str(place / name) for name in ("ca.crt", "client.crt", "client.key")]
    assert kept == Credentials("kitchen", "secret-word", *files)
    assert (place / "client.key").read_text() == "KEY"
    assert {path.stat().st_mode & 0o077 for path in (place, *place.iterdir())} == {0}


def test_every_change_of_a_letter_is_noticed() -> None:
    """Whoever copied it wrongly is told so, and not that the broker refused the password."""
    for text in (INVITATION.text(), INVITATION.as_link()):
        for at, letter in enumerate(text.strip()):
            changed = text[:at] + ("A" if letter != "A" else "B") + text[at + 1 :]
            with suppress(NotAnInvitation):
                assert parse_device_invitation(changed) == INVITATION  # as in the last, unused bits
        with pytest.raises(NotAnInvitation, match=r"copy it again, all of it\. Nothing was drawn"):
            parse_device_invitation(text[: len(text) // 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "manifest"}, "is not an invitation: give the file NAME.invitation"),
        ({"format": 2}, "made by a newer version"),
        ({"sum": "0" * 16}, "is damaged or incomplete"),
        ({"username": "garden"}, "is damaged or incomplete"),
        ({"brokers": []}, "is damaged or incomplete"),
        ({"brokers": 7}, "is damaged or incomplete"),
        ({"labels": {"region": "\x1b[2J"}}, "is damaged or incomplete"),
    ],
)
def test_what_is_not_an_invitation(change: dict[str, object], message: str) -> None:
    document = json.loads(INVITATION.text()) | change
    for text in (json.dumps(document), link(document)):
        with pytest.raises(NotAnInvitation, match=message):
            parse_device_invitation(text)


@pytest.mark.parametrize(
    "field",
    [
        {"brokers": ("http://broker.example",)},
        {"brokers": ("mqtts://me:pass@broker.example",)},
        {"namespace": "a/b"},
        {"campaign": "../etc"},
        {"username": ""},
        {"password": 7},
        {"expires": "soon"},
        {"labels": {"Region": "north"}},
        {"labels": {f"l{number}": "x" for number in range(9)}},
    ],
)
def test_fields_that_a_stranger_may_have_written(field: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(INVITATION, **field)  # type: ignore[arg-type]


def test_what_would_fill_the_memory_is_not_unpacked(tmp_path: Path) -> None:
    for text in (link("x" * 2 * LARGEST), "[" * 100_000, "allomfree:", "allomfree:!", ""):
        with pytest.raises(NotAnInvitation):
            parse_device_invitation(text)
    endless = tmp_path / "endless"
    endless.symlink_to("/dev/zero")
    for file in (endless, tmp_path, tmp_path / "none"):
        with pytest.raises(NotAnInvitation):
            read_invitation(file)
