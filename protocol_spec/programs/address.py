"""Addresses of brokers and campaigns, and the credentials a broker asks for.

`mqtts://host[:port]` is verified TLS; `mqtt://` is plain text and only accepted towards this very
machine, unless the owner asks for it by name. A campaign's address is the broker's with the
namespace and the campaign behind it: mqtts://broker.example/allomfree/home-heat-1a2b3c4d. A
campaign's name alone is one on this machine. An invitation names the campaign in full, with all 64
digits of its digest in place of the first eight: then no other manifest can be taken for it.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from protocol_spec.errors import ParameterError
from protocol_spec.names import CAMPAIGN_IN_FULL
from protocol_spec.programs.errors import SettingsError
from protocol_spec.shown import quoted
from protocol_spec.topics import DEFAULT_NAMESPACE, check_namespace, is_campaign

_THIS_MACHINE = "mqtt://localhost"
_EXAMPLE = "mqtts://broker.example/allomfree/home-heat-1a2b3c4d"
_BROKERS_EXAMPLE = "mqtts://broker.example"


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A broker's address without any secret."""

    tls: bool
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the broker is on this machine."""
        return is_loopback(self.host)

    def check_plaintext(self, allowed: bool) -> None:
        """Refuse to send anything readable over a network unless asked for by name."""
        if not (self.tls or self.is_loopback or allowed):
            raise SettingsError(
                f"{self} is not encrypted and not this machine; nothing was sent. "
                "Use mqtts://, or accept the risk with --allow-plaintext"
            )


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the broker asks for. Secrets come from files or the environment, never from flags."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def identify(self) -> bool:
        """Whether they tell a broker who we are; an authority to trust does not."""
        return not (self.username is None and self.password is None and self.cert_file is None)

    def withheld(self) -> Credentials:
        """What is left for a broker that they are not for."""
        return Credentials(ca_file=self.ca_file)

    def tls_context(self) -> ssl.SSLContext:
        """A verifying context: system authorities or the owner's own, name checked."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise SettingsError(
                f"the TLS files cannot be used ({reason}); nothing was sent. "
                "Check --ca-file, --cert-file and --key-file"
            ) from None
        return context


def parse_broker(url: str) -> BrokerUrl:
    """A broker's address, or `SettingsError` saying what one looks like."""
    return _split(url)[0]


def parse_only_broker(url: str) -> BrokerUrl:
    """A broker's address with nothing behind it, which would be ignored."""
    broker, path = _split(url, _BROKERS_EXAMPLE)
    if path:
        raise SettingsError(f"{quoted(url)} names more than a broker; write it like {broker}")
    return broker


def parse_brokers(value: object) -> tuple[BrokerUrl, ...]:
    """Several brokers: a list, or a text with commas. A bare name is that of a broker with TLS."""
    named = value.split(",") if isinstance(value, str) else value
    if not isinstance(named, list | tuple):
        raise SettingsError("must be a broker's address, or a list of them, as in mqtts://HOST")
    return tuple(_broker(each) for each in named)


def _broker(named: object) -> BrokerUrl:
    if isinstance(named, BrokerUrl):
        return named
    if not isinstance(named, str):
        raise SettingsError("must be a broker's address, or a list of them, as in mqtts://HOST")
    text = named.strip()
    return parse_only_broker(text if "://" in text else f"mqtts://{text}")


class CampaignAddress(NamedTuple):
    """Where a campaign is, and all of its manifest's digest if the address names it in full."""

    broker: BrokerUrl
    namespace: str
    campaign: str
    digest: bytes | None = None


def parse_campaign(url: str) -> tuple[BrokerUrl, str, str]:
    """Broker, namespace and campaign of a campaign's address; a bare name is on this machine."""
    return parse_invitation(url)[:3]


def parse_invitation(url: str) -> CampaignAddress:
    """The same, with the digest where the campaign is named in full."""
    bare = is_campaign(url) or CAMPAIGN_IN_FULL.fullmatch(url)
    broker, path = _split(f"{_THIS_MACHINE}/{url}" if bare else url)
    namespace, _, name = path.rpartition("/")
    namespace = namespace or DEFAULT_NAMESPACE
    campaign, digest = _named(name)
    try:
        check_namespace(namespace)
    except ParameterError as error:
        raise SettingsError(f"{quoted(url)}: {error}") from None
    if not is_campaign(campaign):
        raise SettingsError(f"{quoted(url)} does not name a campaign; write it like {_EXAMPLE}")
    return CampaignAddress(broker, namespace, campaign, digest)


def parse_digest(text: str) -> bytes:
    """A manifest's whole digest, from its 64 hexadecimal digits."""
    digits = text.strip().lower()
    if len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise SettingsError(
            "the digest must be all 64 hexadecimal digits, as `allomfree-collector open` prints "
            "it; nothing was drawn or sent"
        )
    return bytes.fromhex(digits)


def _named(name: str) -> tuple[str, bytes | None]:
    full = CAMPAIGN_IN_FULL.fullmatch(name)
    if full is None:
        return name, None
    slug, digits = full.groups()
    return f"{slug}-{digits[:8]}", bytes.fromhex(digits)


def _split(url: str, example: str = _EXAMPLE) -> tuple[BrokerUrl, str]:
    if "@" in url:  # before anything that repeats the address
        raise SettingsError(
            "the address must not hold a user name or password; nothing was sent. "
            "Use --username and --password-file"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingsError(f"{quoted(url)} is not an address; write it like {example}") from None
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.query or parts.fragment:
        raise SettingsError(f"{quoted(url)} is not an address; write it like {example}")
    tls = parts.scheme == "mqtts"
    broker = BrokerUrl(tls, parts.hostname, port or (8883 if tls else 1883))
    return broker, parts.path.strip("/")
