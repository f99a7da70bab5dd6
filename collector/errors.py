"""What can go wrong at the collector, who can fix it, and the exit code it ends with.

AllomfreeError (from protocol_spec)
├── SettingsError (ValueError)           exit 2: a flag, variable or file (protocol_spec.programs)
├── BrokerUnreachable (ConnectionError)  exit 1: no connection, or none that the broker accepts
├── ManifestError (ValueError)           exit 2: the campaign's author corrects the manifest
└── CollectorError                       exit 1: something at run time
    ├── StorageFailure (OSError)             the disk or database refused; nothing is acknowledged
    ├── DataBusy                             another collector runs on the same data
    └── UnknownCampaign (LookupError)        no such campaign, round or attribute here
"""

from __future__ import annotations

from protocol_spec import AllomfreeError


class CollectorError(AllomfreeError):
    """Base of the collector's errors."""

    exit_code = 1


class StorageFailure(CollectorError, OSError):
    """The disk or database refused a write; what was not committed is not acknowledged."""


class DataBusy(CollectorError):
    """Another collector is running on the same data directory."""


class UnknownCampaign(CollectorError, LookupError):
    """The campaign, round or attribute is not known here."""
