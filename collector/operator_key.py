"""The operator's key: it signs manifests, so that owners can tell whose campaigns they join (P4).

The secret is in a file of its own, outside the database, and is read by `open` and `operator-key`
alone. Whoever has it can sign in the operator's name; see docs/security.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from collector.errors import CollectorError, StorageFailure
from protocol_spec import Manifest
from protocol_spec.programs import signing
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.installing import install
from protocol_spec.programs.private_files import create_durably, exposed_mode, write_durably

FILE: Final = "operator.key"
SECRET_BYTES: Final = 32


class OperatorKey:
    """The key in a data directory, if there is one."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    @property
    def public(self) -> bytes:
        """The public key, which manifests and owners name the operator by; empty if none."""
        secret = self._secret()
        return _public(secret) if secret else b""

    def create(self) -> bytes:
        """Make a key where there is none; returns the public one."""
        if self._secret():
            raise CollectorError(
                f"there is an operator key in {self.path} already; nothing was changed. Owners "
                "know it: replace it only if you must: allomfree-collector operator-key rotate"
            )
        create_durably(self.path, _new_secret())
        return self.public

    def rotate(self) -> bytes:
        """Replace the key by a new one; the old secret is gone. Returns the new public key."""
        if not self._secret():
            raise self.no_key()
        write_durably(self.path, _new_secret())
        return self.public

    def sign(self, manifest: Manifest) -> bytes:
        """The signature of a manifest that names this operator. Raises if it names another."""
        secret = self._secret()
        own = _public(secret) if secret else b""
        if not secret or own != manifest.operator:
            here = f"the key here, {self.path}, is {own.hex()}" if own else "there is no key here"
            raise CollectorError(
                f"the manifest names the operator {manifest.operator.hex()}, but {here}; nothing "
                "was opened. Correct `operator` in the manifest, or open it where that key is"
            )
        return signing.sign(secret, manifest.digest)

    def no_key(self) -> CollectorError:
        """The error where a key is needed."""
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


def _public(secret: bytes) -> bytes:
    try:
        return signing.public_key(secret)
    except signing.NoSignatures:
        raise _missing() from None


def _new_secret() -> bytes:
    try:
        return signing.new_secret()
    except signing.NoSignatures:
        raise _missing() from None


def _missing() -> SettingsError:
    return SettingsError(
        "cryptography is not installed, which signs manifests; nothing was changed. Run: "
        f"{install('verify')}"
    )
