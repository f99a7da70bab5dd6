"""A device's invitation: all it needs to take part, as one file or one link.

`allomfree-collector enrol` writes it and `allomfree-edge join` takes it: the campaign's address,
the device's credential for the broker, the authority that the broker's certificate is checked with,
and the public labels that the operator gave the device. The file is JSON, for its owner alone; the
link is the same, compressed, to paste or to scan. Both are as secret as a password.

A sum over all fields tells a damaged file from one that the broker refuses.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from protocol_spec.attributes import LABEL_VALUE
from protocol_spec.errors import AllomfreeError, quoted, shown
from protocol_spec.programs.settings import (
    BrokerUrl,
    Credentials,
    SettingsError,
    parse_invitation,
    parse_only_broker,
)
from protocol_spec.programs.system import make_private_directory, write_durably
from protocol_spec.topics import ATTRIBUTE, check_namespace

ENDING: Final = ".invitation"
SCHEME: Final = "allomfree:"
FORMAT: Final = 1
LARGEST: Final = 1 << 16  # bytes; one with a client certificate has about 3,000
_KIND: Final = "allomfree invitation"
_FILES: Final = {"authority": "ca.crt", "certificate": "client.crt", "key": "client.key"}
MOST_LABELS: Final = 8
_ASK: Final = "Nothing was drawn or sent. Ask whoever invited you for a new one"


def check_labels(labels: object) -> dict[str, str]:
    """Public facts about a device, such as region = north, by which results are grouped."""
    if not isinstance(labels, Mapping) or len(labels) > MOST_LABELS:
        raise SettingsError(f"a device has at most {MOST_LABELS} labels")
    for name, value in labels.items():
        if not ATTRIBUTE.fullmatch(str(name)) or not LABEL_VALUE.fullmatch(str(value)):
            raise SettingsError(
                f"{quoted(f'{name}={value}')} is not a label: write it like region=north. The name "
                "has a-z, 0-9, _ and -; the value letters, digits, spaces, . _ and -; each at most "
                "32 of them"
            )
    return {str(name): str(value) for name, value in labels.items()}


class NotAnInvitation(SettingsError):
    """A file or link is no invitation, or damaged."""


@dataclass(frozen=True, slots=True)
class DeviceInvitation:
    """What a device is given. `brokers` are all addresses of the one broker, the first of which is
    used; `campaign` is empty where the owner gets the campaign's link separately.

    With `exchange` the password is only for joining: the device exchanges it for one of its own,
    before `expires` if that is set. Times are in Unix seconds.
    """

    brokers: tuple[str, ...]
    namespace: str
    username: str
    campaign: str = ""
    password: str | None = field(default=None, repr=False)
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    labels: dict[str, str] = field(default_factory=dict)
    exchange: bool = False
    expires: int | None = None

    def __post_init__(self) -> None:
        """Checks what a stranger may have written."""
        texts = (self.username, self.campaign, self.authority, self.certificate, self.key)
        if not all(isinstance(text, str) for text in (*texts, self.password or "")):
            raise ValueError("a field is not text")
        if {type(self.exchange), type(self.expires)} - {bool, int, type(None)}:
            raise ValueError("`exchange` or `expires` is wrong")
        if not self.brokers or not self.username:
            raise ValueError("the broker or the name is missing")
        for broker in self.brokers:
            parse_only_broker(broker)
        check_namespace(self.namespace)
        check_labels(self.labels)
        if self.campaign:
            parse_invitation(self.link)

    @property
    def broker(self) -> BrokerUrl:
        return parse_only_broker(self.brokers[0])

    @property
    def link(self) -> str:
        """The campaign's address; empty if the invitation is for no particular one."""
        return f"{self.brokers[0]}/{self.namespace}/{self.campaign}" if self.campaign else ""

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(self._document(), indent=1, ensure_ascii=False) + "\n"

    def as_link(self) -> str:
        """The same in one line, to paste or to scan."""
        packed = zlib.compress(json.dumps(self._document(), separators=(",", ":")).encode(), 9)
        return SCHEME + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def _document(self) -> dict[str, Any]:
        known = {name: value for name, value in asdict(self).items() if value}
        return {"kind": _KIND, "format": FORMAT, **known, "sum": _sum(known)}

    def store(self, directory: Path) -> Credentials:
        """Write certificates and key into a private directory; the credential that names them."""
        make_private_directory(directory)
        stored: dict[str, str] = {}
        for name, file in _FILES.items():
            if text := getattr(self, name):
                write_durably(directory / file, text)
                stored[name] = str(directory / file)
        return Credentials(
            self.username,
            self.password,
            stored.get("authority"),
            stored.get("certificate"),
            stored.get("key"),
        )


def read_invitation(file: Path) -> DeviceInvitation:
    try:
        with file.open("rb") as content:
            found = content.read(LARGEST + 1)
    except OSError as error:
        raise NotAnInvitation(
            f"{shown(file)} cannot be read: {error.strerror}. Nothing was drawn or sent"
        ) from None
    return parse_device_invitation(found.decode(errors="replace"), shown(file))


def parse_device_invitation(text: str, name: str = "the link") -> DeviceInvitation:
    """The content of a file, or a link."""
    text = text.strip()
    try:
        packed = text.startswith(SCHEME)
        document = {} if not packed and _KIND not in text else json.loads(_unpacked(text))
        if document.get("kind") != _KIND:
            raise NotAnInvitation(
                f"{name} is not an invitation: give the file NAME{ENDING} that "
                "`allomfree-collector enrol` wrote for this device. Nothing was drawn or sent"
            )
        if document["format"] != FORMAT:
            raise NotAnInvitation(
                f"{name} was made by a newer version of this program (format "
                f"{quoted(str(document['format']))}). Nothing was drawn or sent. Upgrade this one"
            )
        known = {f.name: document[f.name] for f in fields(DeviceInvitation) if f.name in document}
        if document["sum"] != _sum(known):
            raise ValueError("the sum is wrong")
        return DeviceInvitation(**{**known, "brokers": tuple(known["brokers"])})
    except NotAnInvitation:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, AllomfreeError):
        raise NotAnInvitation(
            f"{name} is damaged or incomplete: copy it again, all of it. {_ASK}"
        ) from None


def _unpacked(link: str) -> str | bytes:
    if not link.startswith(SCHEME):
        return link
    packed = link.removeprefix(SCHEME)
    try:
        data = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
        unpacked = zlib.decompressobj()
        text = unpacked.decompress(data, LARGEST)
    except zlib.error:
        raise ValueError("the link is damaged") from None
    if not unpacked.eof:
        raise ValueError("the link is cut off, or too long")
    return text


def _sum(known: dict[str, Any]) -> str:
    text = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
