"""The error both programs raise for what their user typed or wrote."""

from __future__ import annotations

from protocol_spec.errors import AllomfreeError


class SettingsError(AllomfreeError, ValueError):
    """A flag, environment variable or configuration file is wrong."""

    exit_code = 2
