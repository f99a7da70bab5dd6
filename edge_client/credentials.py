"""The credentials that `join` was given, kept for `run`: each for one broker alone (P2).

They are in a private file next to the memory, and shown to no broker but the one they were given
for. Files are remembered by name, so that a password or certificate that is renewed is followed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from edge_client.errors import SettingsError, StorageFailure, as_edge_errors
from protocol_spec.programs.settings import BrokerUrl, Credentials, read_password
from protocol_spec.programs.system import write_durably

CREDENTIALS_FILE: Final = "credentials.json"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one broker asks for, and what to trust it by."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def identifies(self) -> bool:
        """Whether it tells the broker who we are."""
        secrets = (self.username, self.password, self.password_file, self.cert_file)
        return any(secret is not None for secret in secrets)

    @as_edge_errors()
    def credentials(self) -> Credentials:
        """What to show that broker; reads the password now."""
        named = None if self.password_file is None else Path(self.password_file)
        password = self.password if named is None else read_password(named)
        return Credentials(self.username, password, self.ca_file, self.cert_file, self.key_file)


class RememberedCredentials:
    """All that is remembered in a state directory, read again each time: others may join."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / CREDENTIALS_FILE

    def of(self, broker: BrokerUrl) -> Remembered | None:
        """What was given for this very broker."""
        return self._all().get(str(broker))

    def brokers(self) -> list[str]:
        """Those that something is remembered for."""
        return sorted(self._all())

    def remember(self, broker: BrokerUrl, given: Remembered) -> None:
        """From now on, for this broker."""
        self._write({**self._all(), str(broker): given})

    def forget(self, broker: str) -> None:
        """Of a broker that no campaign of this device uses any more."""
        kept = self._all()
        if kept.pop(broker, None) is not None:
            self._write(kept)

    def _all(self) -> dict[str, Remembered]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return {broker: _entry(table) for broker, table in found["brokers"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            why = error.strerror
        except (ValueError, KeyError, TypeError, AttributeError):
            why = "it is damaged"
        raise SettingsError(
            f"the remembered credentials {self.path} cannot be read: {why}. Nothing was drawn or "
            "sent. Remove the file, and join again with the credentials: allomfree-edge join"
        )

    def _write(self, entries: Mapping[str, Remembered]) -> None:
        told = {broker: asdict(entry) for broker, entry in entries.items()}
        try:
            write_durably(self.path, json.dumps({"brokers": told}, indent=1) + "\n")
        except OSError as error:
            raise StorageFailure(
                f"the credentials cannot be remembered in {self.path}: {error.strerror}. Nothing "
                "was drawn or sent. Free some space, or name them in the configuration file"
            ) from None


def _entry(table: Mapping[str, Any]) -> Remembered:
    known = {name.name for name in fields(Remembered)}
    entry = Remembered(**{name: value for name, value in table.items() if name in known})
    if not all(isinstance(text, str | None) for text in asdict(entry).values()):
        raise ValueError("no text")
    return entry
