"""The credentials that `join` was given, kept for `run`: each for one broker alone (P2).

They are in a private file next to the memory, and shown to no broker but the one they were given
for. Files are remembered by name, so that a password or certificate that is renewed is followed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_client.errors import SettingsError, StorageFailure, as_edge_errors
from protocol_spec.programs.settings import BrokerUrl, Credentials, read_password
from protocol_spec.programs.system import write_durably

if TYPE_CHECKING:
    from protocol_spec.programs.invitation import DeviceInvitation

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
    labels: dict[str, str] = field(default_factory=dict, kw_only=True)  # known to the operator

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Remembered:
        """Read one entry of the file; unknown names are ignored, other types a ValueError."""
        known = {name.name: table.get(name.name) for name in fields(cls)}
        labels = dict(known.pop("labels") or {})
        if not all(isinstance(text, str | None) for text in (*known.values(), *labels.values())):
            raise ValueError("not a text")
        return cls(**known, labels=labels)

    @property
    def identifies(self) -> bool:
        """Whether it identifies this device to the broker."""
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
        return self._all().get(str(broker))

    def labels(self, broker: BrokerUrl | str) -> dict[str, str]:
        """Public facts by which the operator of a broker groups this device's answers; none if the
        file is damaged, which `doctor` reports."""
        with suppress(SettingsError):
            kept = self._all().get(str(broker))
            return {} if kept is None else kept.labels
        return {}

    def brokers(self) -> list[str]:
        return sorted(self._all())

    def remember(self, broker: BrokerUrl, given: Remembered) -> None:
        """Show these to this broker from now on."""
        self._write({**self._all(), str(broker): given})

    def keep(self, invitation: DeviceInvitation) -> None:
        """Remember an invitation's credential for all addresses of its broker."""
        place = self._place(invitation.brokers[0])
        try:
            known = invitation.store(place)
        except OSError as error:
            raise self._not_written(error) from None
        files = (known.ca_file, known.cert_file, known.key_file)
        entry = Remembered(known.username, known.password, None, *files, labels=invitation.labels)
        self._write({**self._all(), **dict.fromkeys(invitation.brokers, entry)})

    def forget(self, broker: str) -> None:
        """Remove what was given for a broker that no campaign of this device uses any more, under
        all of its addresses."""
        kept = self._all()
        gone = kept.get(broker)
        if gone is None:
            return
        same = [name for name, entry in kept.items() if entry == gone]
        self._write({name: entry for name, entry in kept.items() if name not in same})
        for name in same:
            for file in self._place(name).glob("*"):
                file.unlink()
            with suppress(OSError):
                self._place(name).rmdir()

    def _place(self, broker: str) -> Path:
        """Where the certificates of an invitation are kept."""
        return self.path.with_name("".join(c if c.isalnum() or c in ".-" else "-" for c in broker))

    def _all(self) -> dict[str, Remembered]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return {name: Remembered.from_table(table) for name, table in found["brokers"].items()}
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
        table = {"brokers": {broker: asdict(entry) for broker, entry in entries.items()}}
        try:
            write_durably(self.path, json.dumps(table, indent=1) + "\n")
        except OSError as error:
            raise self._not_written(error) from None

    def _not_written(self, error: OSError) -> StorageFailure:
        return StorageFailure(
            f"the credentials cannot be remembered in {self.path}: {error.strerror}. Nothing "
            "was drawn or sent. Free some space, or name them in the configuration file"
        )
