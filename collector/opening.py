"""What goes with a campaign: a trial of it, the operator's signature, and the join link."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from collector.errors import CollectorError, StorageFailure
from collector.records import Campaign
from collector.settings import Settings
from protocol_spec import TRIAL_MARK, Manifest, ManifestError, is_trial
from protocol_spec.limits import MAX_PURPOSE_LENGTH, MAX_SLUG_LENGTH, MAX_TITLE_LENGTH
from protocol_spec.programs import signing
from protocol_spec.programs.cli import install_command
from protocol_spec.programs.settings import SettingsError, parse_broker
from protocol_spec.programs.system import create_durably, exposed_mode, write_durably

# --- trials ----------------------------------------------------------------------------------
# A trial is made from the manifest of a real campaign: short rounds that begin at once, to see the
# whole system work in minutes. Its name, title and purpose say that it is one, for the owners who
# are asked to join and for the readers of its results; devices go by the title (M117).

ROUNDS: Final = 15
MIN_REPORTS: Final = 10
PERIOD_SECONDS: Final = 20
_SUFFIX: Final = "-trial"
_PURPOSE: Final = "A trial of the system: devices make their answers up. For: "
_MEANING: Final = "this is a TRIAL: devices make their answers up, and the results mean nothing"
_DROPPED: Final = ("created", "expires", "devices", "receipt_pages", "retention")


def trial_warnings(manifest: Manifest) -> list[str]:
    """What is shown with every result of a trial."""
    return [_MEANING] if is_trial(manifest) else []


def read_campaign(
    file: Path, campaigns: Iterable[Campaign], now: int, *, trial_seconds: int | None = None
) -> Manifest:
    """The manifest in a file, or a trial of it with rounds of `trial_seconds`.

    What begins "now" began when it was first opened: the same file is the same campaign for as
    long as that is open and not over.
    """
    for campaign in campaigns:
        first, end = campaign.manifest.rounds.first, campaign.manifest.rounds.end
        if campaign.closed is None and end > now:
            again = _read(file, first, trial_seconds)
            if again.digest == campaign.manifest.digest:
                return again
    return _read(file, now, trial_seconds)


def _read(file: Path, now: int, trial_seconds: int | None) -> Manifest:
    manifest = Manifest.from_file(file, now=now)  # a trial of an invalid manifest is invalid, too
    if trial_seconds is None:
        return manifest
    document = trial_of(tomllib.loads(file.read_text(encoding="utf-8")), trial_seconds)
    try:
        return Manifest.from_authored(document, now=now)
    except ManifestError as error:
        raise ManifestError(error.problems, f"{file}, as a trial") from None


def trial_of(document: Mapping[str, Any], period_seconds: int = PERIOD_SECONDS) -> dict[str, Any]:
    """An authored manifest as a trial."""
    made = {name: value for name, value in document.items() if name not in _DROPPED}
    rounds = {"first": "now", "period": period_seconds, "count": ROUNDS}
    rounds["grace"] = max(5, period_seconds // 4)
    rounds["drain"] = max(10, period_seconds)
    if document["rounds"].get("each"):
        rounds["each"] = min(ROUNDS, document["rounds"]["each"])
    return made | {
        "slug": document["slug"][: MAX_SLUG_LENGTH - len(_SUFFIX)].strip("-") + _SUFFIX,
        "title": (TRIAL_MARK + document["title"])[:MAX_TITLE_LENGTH].strip(),
        "purpose": (_PURPOSE + document["purpose"])[:MAX_PURPOSE_LENGTH].strip(),
        "min_reports": min(MIN_REPORTS, document.get("min_reports", MIN_REPORTS)),
        "retention": 3_600,
        "rounds": rounds,
    }


# --- the operator's key (P4) -----------------------------------------------------------------

KEY_FILE: Final = "operator.key"
SECRET_BYTES: Final = 32


class OperatorKey:
    """The key in a data directory, if there is one: it signs manifests, so that owners can verify
    whose campaigns they join.

    The secret is in a file of its own, outside the database, and is read by `open` and
    `operator-key` alone. Whoever has it can sign as the operator; see docs/security.md.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / KEY_FILE

    @property
    def public(self) -> bytes:
        """The public key, by which manifests and owners name the operator; empty if none."""
        secret = self._secret()
        return _with_signatures(lambda: signing.public_key(secret)) if secret else b""

    def create(self) -> None:
        if self._secret():
            raise CollectorError(
                f"there is already an operator key in {self.path}; nothing was changed. Owners "
                "know it: replace it only if you must: allomfree-collector operator-key rotate"
            )
        create_durably(self.path, _with_signatures(signing.new_secret))

    def rotate(self) -> None:
        """Replace the key by a new one; the old secret is gone."""
        if not self._secret():
            raise self.no_key()
        write_durably(self.path, _with_signatures(signing.new_secret))

    def sign(self, manifest: Manifest) -> bytes:
        """The signature of a manifest that names this operator. Raises if it names another."""
        secret, own = self._secret(), self.public
        if not secret or own != manifest.operator:
            here = f"the key here, {self.path}, is {own.hex()}" if own else "there is no key here"
            raise CollectorError(
                f"the manifest names the operator {manifest.operator.hex()}, but {here}; nothing "
                "was opened. Correct `operator` in the manifest, or open it where that key is"
            )
        return signing.sign(secret, manifest.digest)

    def no_key(self) -> CollectorError:
        return CollectorError(
            f"there is no operator key in {self.path.parent}; nothing was changed. Make one with: "
            "allomfree-collector operator-key create"
        )

    def _secret(self) -> bytes | None:
        try:
            mode, secret = exposed_mode(self.path), self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from None
        if mode is not None:
            raise self._unusable(f"can be read by others (mode {mode:o}): chmod 600 {self.path}")
        if len(secret) != SECRET_BYTES:
            raise self._unusable("is damaged")
        return secret

    def _unusable(self, what: str) -> StorageFailure:
        return StorageFailure(
            f"the operator key {self.path} {what}. Nothing was changed; restore it from a backup, "
            "or see docs/security.md on a lost key"
        )


def _with_signatures(step: Callable[[], bytes]) -> bytes:
    try:
        return step()
    except signing.NoSignatures:
        raise SettingsError(
            "cryptography, which signs manifests, is not installed; nothing was changed. Run: "
            f"{install_command('verify')}"
        ) from None


# --- the join link ---------------------------------------------------------------------------
# The broker's address with a campaign's whole digest (P3). The page is a process of its own and
# knows no broker, so the address is kept in the data directory. It holds no secret: whoever has the
# link still needs the credential that `enrol` creates, if the broker asks for one.

ADDRESS_FILE: Final = "join-address"


def remember_address(settings: Settings) -> str:
    """Keep the address that devices use, for the page; returns it."""
    # Imported here because the page, which only reads, does without brokers.
    from collector.brokers.choose import address_for_devices, choose_broker  # noqa: PLC0415

    address = f"{address_for_devices(settings)}/{choose_broker(settings)[0].namespace}"
    if _remembered(settings.data_dir) != address:
        with suppress(OSError):  # a full disk is reported by what must be stored
            write_durably(settings.data_dir / ADDRESS_FILE, address)
    return address


def join_link(directory: Path, manifest: Manifest) -> str | None:
    """What an owner scans or pastes; None while no address is known."""
    address = _remembered(directory)
    return None if address is None else f"{address}/{manifest.full_name}"


def is_for_others(link: str) -> bool:
    """Whether other machines can use a link: a link to this machine is useless to them."""
    try:
        return not parse_broker(link).is_loopback
    except SettingsError:
        return False


def _remembered(directory: Path) -> str | None:
    try:
        return (directory / ADDRESS_FILE).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
