"""What can go wrong at the collector, who can fix it, and the exit code it ends with.

AllomfreeError (from protocol_spec)
├── SettingsError (ValueError)           exit 2: a flag, variable or file (protocol_spec.programs)
├── BrokerUnreachable (ConnectionError)  exit 1: no connection, or none that the broker accepts
├── ManifestError (ValueError)           exit 2: the campaign's author corrects the manifest
└── CollectorError                       exit 1: something at run time
    ├── StorageFailure (OSError)             the disk or database refused; nothing is acknowledged
    │   ├── Fenced                               others no longer wait for this worker: enlist again
    │   └── NotLeading                           another worker leads now; nothing was changed
    ├── NewerSchema                          a newer version of this program changed the database
    ├── DataBusy                             another collector runs on the same data
    ├── NotABackup                           no backup, a damaged one, or of a newer version
    ├── MissingPackage (ImportError)         an extra is not installed here
    ├── UnreadableResults (ValueError)       a file or address does not hold results
    └── UnknownCampaign (LookupError)        no such campaign, round or attribute here
"""

from __future__ import annotations

from protocol_spec import AllomfreeError


class CollectorError(AllomfreeError):
    """Base of the collector's errors."""

    exit_code = 1


class StorageFailure(CollectorError, OSError):
    """The disk or database refused a write; what was not committed is not acknowledged."""


class Fenced(StorageFailure):
    """This worker was shut out, or lost its connection; it has to enlist again."""


class NotLeading(StorageFailure):
    """Only the worker that leads may do this, and another one does."""


class NewerSchema(CollectorError):
    """A newer version of this program changed the database while this one was running."""

    def __init__(self, place: object) -> None:
        super().__init__(
            f"a newer version of this program changed {place} while this one was running, so it "
            "stops; what was not committed was not acknowledged, and is counted by the newer one. "
            "Update allomfree on this machine"
        )


class DataBusy(CollectorError):
    """Another collector is running on the same data directory."""


class NotABackup(CollectorError):
    """What was given is no backup, or not one that can be restored here."""


class MissingPackage(CollectorError, ImportError):
    """A package that only some installations have is not installed here."""


class UnreadableResults(CollectorError, ValueError):
    """A file or an address does not hold results, or cannot be read."""


class UnknownCampaign(CollectorError, LookupError):
    """The campaign, round or attribute is not known here."""
