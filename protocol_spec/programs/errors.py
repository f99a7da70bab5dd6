"""The errors both programs raise."""

from __future__ import annotations

from protocol_spec.errors import AllomfreeError


class SettingsError(AllomfreeError, ValueError):
    """A flag, environment variable or configuration file is wrong."""

    exit_code = 2


class BrokerUnreachable(AllomfreeError, ConnectionError):
    """No usable connection to the broker."""

    exit_code = 1
