"""What can go wrong on a device, who can fix it, and the exit code it ends with.

AllomfreeError (from protocol_spec)
├── BrokerUnreachable (ConnectionError)  exit 1: no connection, or none that the broker accepts
└── EdgeError                        exit 1: something at run time
    ├── SettingsError (ValueError)       exit 2: the owner corrects a flag, variable or file
    ├── PolicyRefusal (PermissionError)  exit 3: the owner's policy forbids it; nothing was drawn
    ├── StateError                       the state directory cannot be trusted or used
    │   ├── StateBusy                        another agent holds it
    │   ├── StateExposed                     others can read it
    │   ├── StateLost                        the memory is missing, damaged or rolled back
    │   └── StateOfOtherVersion              written by another version
    ├── StorageFailure (OSError)         the disk refused a write; nothing new was drawn or sent
    ├── CampaignProblem                  unknown, ended or changed campaign
    └── SourceFailure                    a source has no usable value

Every message says what happened, what was or was not sent or spent, and the next step. None holds
a value, a memo or a report's bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol_spec import AllomfreeError
from protocol_spec.programs import settings as shared

BrokerUnreachable = shared.BrokerUnreachable


class EdgeError(AllomfreeError):
    """Base of the agent's errors."""

    exit_code = 1


class SettingsError(EdgeError, shared.SettingsError):
    """A flag, environment variable or configuration file is wrong."""

    exit_code = 2


class PolicyRefusal(EdgeError, PermissionError):
    """The campaign asks for more than the owner's policy allows."""

    exit_code = 3


class StateError(EdgeError):
    """The state directory cannot be used as it is."""


class StateBusy(StateError):
    """Another agent is running on the same state."""


class StateExposed(StateError):
    """The state's files can be read by others."""


class StateLost(StateError):
    """The memory of earlier answers is missing, damaged or older than it was."""


class StateOfOtherVersion(StateError):
    """The state was written by another version of the agent; nothing in it was changed."""


class StorageFailure(EdgeError, OSError):
    """The disk refused a write."""


class CampaignProblem(EdgeError, LookupError):
    """The campaign is unknown here, has ended, or is not the one that was joined."""


class SourceFailure(EdgeError):
    """The device's value could not be read."""


@contextmanager
def as_edge_errors() -> Iterator[None]:
    """Around what both programs share: its `SettingsError` becomes the agent's."""
    try:
        yield
    except SettingsError:
        raise
    except shared.SettingsError as error:
        raise SettingsError(str(error)) from None
