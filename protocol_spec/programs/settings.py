"""Settings, addresses and credentials, and the errors that both programs raise.

Flags come before `ALLOMFREE_*` variables before the TOML file before defaults. A program's table of
settings is its parser, its help texts and its documentation. Configuration files are read and never
written; passwords come from a file or the environment only.

`mqtts://host[:port]` is verified TLS; `mqtt://` is plain text and only accepted for this machine,
unless the owner allows it by name. A campaign's address is the broker's followed by the namespace
and the campaign: mqtts://broker.example/allomfree/home-heat-1a2b3c4d. A campaign's name alone is
one on this machine. An invitation names the campaign in full, with all 64 digits of its digest in
place of the first eight: then no other manifest can be taken for it.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from protocol_spec.errors import AllomfreeError, ParameterError, nearest, quoted, shown
from protocol_spec.topics import CAMPAIGN_IN_FULL, DEFAULT_NAMESPACE, check_namespace, is_campaign

if TYPE_CHECKING:
    import ssl


class SettingsError(AllomfreeError, ValueError):
    """A flag, environment variable or configuration file is wrong."""

    exit_code = 2


class WrongSetting(SettingsError):
    """The same, found before anything was done; in the agent's words by default."""

    def __init__(self, what: str, unchanged: str = "Nothing was drawn or sent") -> None:
        super().__init__(f"{what}. {unchanged}")
        self.what = what


class BrokerUnreachable(AllomfreeError, ConnectionError):
    """No usable connection to the broker."""

    exit_code = 1


# --- addresses and credentials -------------------------------------------------------------------


_THIS_MACHINE = "mqtt://localhost"
_EXAMPLE = "mqtts://broker.example/allomfree/home-heat-1a2b3c4d"


def is_loopback(host: str) -> bool:
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
    schemes: ClassVar = ("mqtt", "mqtts")
    ports: ClassVar = (1883, 8883)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.schemes[self.tls]}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def check_plaintext(self, allowed: bool) -> None:
        """Refuse to send plain text over a network unless it is allowed by name (R18)."""
        if not (self.tls or self.is_loopback or allowed):
            raise SettingsError(
                f"{self} is not encrypted and not this machine; nothing was sent. "
                f"Use {self.schemes[1]}://, or accept the risk with --allow-plaintext"
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
        """Whether they show a broker who we are; an authority to trust does not."""
        return not (self.username is None and self.password is None and self.cert_file is None)

    def withheld(self) -> Credentials:
        """What another broker than theirs may see."""
        return Credentials(ca_file=self.ca_file)

    def tls_context(self) -> ssl.SSLContext:
        """A verifying context: system authorities or the owner's own, name checked."""
        import ssl  # noqa: PLC0415 - --help and --version start without it

        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2  # some systems leave it open
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:  # as is ssl.SSLError
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise SettingsError(
                f"the TLS files cannot be used ({reason}); nothing was sent. "
                "Check --ca-file, --cert-file and --key-file"
            ) from None
        return context


def parse_broker(url: str) -> BrokerUrl:
    """A broker's address, or `SettingsError` saying what one looks like."""
    return _split(url)[0]


def parse_only_broker(url: str, kind: type[BrokerUrl] = BrokerUrl) -> BrokerUrl:
    """A broker's address with nothing after it, which would be ignored."""
    broker, path = _split(url, f"{kind.schemes[1]}://broker.example", kind)
    if path:
        raise SettingsError(f"{quoted(url)} names more than a broker; write it like {broker}")
    return broker


def parse_brokers(value: object, kind: type[BrokerUrl] = BrokerUrl) -> tuple[BrokerUrl, ...]:
    """Several brokers: a list, or a text with commas. A bare name is that of a broker with TLS."""
    named = value.split(",") if isinstance(value, str) else value
    given = list(named) if isinstance(named, list | tuple) else [None]
    if not all(isinstance(each, str | BrokerUrl) for each in given):
        example = f"{kind.schemes[1]}://HOST"
        raise SettingsError(f"must be a broker's address, or a list of them, as in {example}")
    texts = [str(each).strip() for each in given]
    full = [text if "://" in text else f"{kind.schemes[1]}://{text}" for text in texts]
    return tuple(parse_only_broker(text, kind) for text in full)


class CampaignAddress(NamedTuple):
    """Where a campaign is, with the whole digest of its manifest if the address has it in full."""

    broker: BrokerUrl
    namespace: str
    campaign: str
    digest: bytes | None = None


def parse_invitation(url: str) -> CampaignAddress:
    """Where a campaign is; a bare name is on this machine."""
    bare = is_campaign(url) or CAMPAIGN_IN_FULL.fullmatch(url)
    broker, path = _split(f"{_THIS_MACHINE}/{url}" if bare else url)
    namespace, _, name = path.rpartition("/")
    namespace = namespace or DEFAULT_NAMESPACE
    campaign, digest = name, None
    if full := CAMPAIGN_IN_FULL.fullmatch(name):
        campaign, digest = f"{full[1]}-{full[2][:8]}", bytes.fromhex(full[2])
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


def _split(
    url: str, example: str = _EXAMPLE, kind: type[BrokerUrl] = BrokerUrl
) -> tuple[BrokerUrl, str]:
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
    if parts.scheme not in kind.schemes or not parts.hostname or parts.query or parts.fragment:
        raise SettingsError(f"{quoted(url)} is not an address; write it like {example}")
    tls = parts.scheme == kind.schemes[1]
    broker = kind(tls, parts.hostname, port or kind.ports[tls])
    return broker, parts.path.strip("/")


# --- settings ------------------------------------------------------------------------------------


LARGEST = 2**63 - 1  # a whole number in TOML; Python reads larger ones and cannot write them


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set, by flag, variable and file."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    help: str
    metavar: str = "TEXT"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "ALLOMFREE_" + self.name.upper()


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text")
    return value


def path(value: Any) -> Path:
    """A path; ~ is the home directory."""
    if "\0" in str(value):
        raise ValueError("must not hold the character 0")
    return (value if isinstance(value, Path) else Path(text(value))).expanduser()


def seconds(value: Any) -> int:
    """A number of seconds that MQTT can express as keepalive."""
    digits = str(value)  # True and 1.5 are no whole numbers
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 65_535):
        raise ValueError("must be from 1 to 65535 seconds")
    return int(digits)


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("1", "true", "yes", "on"):
        return True
    if str(value).lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("must be true or false")


def level(value: Any) -> str:
    if str(value).lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("must be debug, info, warning or error")
    return str(value).lower()


BROKER_SETTINGS = (
    Setting("username", text, None, "name the broker knows us by", "NAME"),
    Setting("password_file", path, None, "file holding the broker's password", "FILE"),
    Setting(
        "ca_file", path, None, "certificate authority to trust instead of the system's", "FILE"
    ),
    Setting("cert_file", path, None, "client certificate, for mutual TLS", "FILE"),
    Setting("key_file", path, None, "the client certificate's key", "FILE"),
    Setting("allow_plaintext", flag, False, "accept mqtt:// to another machine, unencrypted"),
    Setting(
        "keepalive", seconds, 60, "seconds after which a silent connection is tested", "SECONDS"
    ),
    Setting("log_level", level, "info", "what to log: debug, info, warning or error", "LEVEL"),
)


def config_file(program: str, given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The configuration file: the one named, else the user's, else the system's, if any."""
    if given or "ALLOMFREE_CONFIG" in environ:
        return given or Path(environ["ALLOMFREE_CONFIG"])
    home = Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    files = [d / "allomfree" / f"{program}.toml" for d in (home, Path("/etc"))]
    return next((file for file in files if file.exists()), None)


def load(file: Path | None) -> dict[str, Any]:
    """The configuration file's content; empty when there is none."""
    if file is None:
        return {}
    try:
        return tomllib.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = f"is not TOML: {shown(error)}"
    raise WrongSetting(f"the configuration {shown(file)} {reason}")


def section(table: Mapping[str, Any], name: str, file: Path | None) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise WrongSetting(f"{shown(file)}: {name} must be a table, [{name}]")
    return found


def resolve(
    settings: Sequence[Setting],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    file: Path | None,
    *,
    tables: Sequence[str] = (),
) -> dict[str, Any]:
    """Every setting's value. Raises `WrongSetting` naming where the bad value is."""
    names = [setting.name for setting in settings]
    for name in table:
        if name not in (*names, *tables):
            near = nearest(name, [*names, *tables])
            known = (f"{near} There are " if near else "; there are ") + ", ".join(names)
            extra = f", and tables {', '.join(f'[{t}]' for t in tables)}" if tables else ""
            raise WrongSetting(f"{shown(file)}: {shown(name, 80)} is not a setting{known}{extra}")
    return {s.name: _value(s, flags, environ, table, file) for s in settings}


def read_password(file: Path | None) -> str | None:
    """The broker's password, from its file or ALLOMFREE_PASSWORD."""
    if file is None:
        return os.environ.get("ALLOMFREE_PASSWORD")
    try:
        return file.read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise WrongSetting(f"the password file {shown(file)} cannot be read: {reason}") from None


def _value(
    setting: Setting,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    file: Path | None,
) -> Any:
    given = [
        (setting.flag, flags.get(setting.name)),
        (setting.variable, environ.get(setting.variable)),
        (f"{shown(file)}: {setting.name}", table.get(setting.name)),
    ]
    for where, value in given:
        if value is not None:
            if isinstance(value, int) and abs(value) > LARGEST:
                raise WrongSetting(f"{where}: the number is too large")
            try:
                return setting.parse(value)
            except (ValueError, TypeError) as error:
                # An address with an @ in it may hold a password.
                given_value = "(hidden)" if "@" in str(value) else quoted(str(value))
                raise WrongSetting(f"{where} = {given_value}: {shown(error)}") from None
    return setting.default
