"""The errors both programs raise."""

from __future__ import annotations

from protocol_spec.errors import AllomfreeError


class SettingsError(AllomfreeError, ValueError):
    """A flag, environment variable or configuration file is wrong."""

    exit_code = 2


class WrongSetting(SettingsError):
    """The same, found before anything was done; in the agent's words, unless a program has its
    own."""

    def __init__(self, what: str, unchanged: str = "Nothing was drawn or sent") -> None:
        super().__init__(f"{what}. {unchanged}")
        self.what = what


class BrokerUnreachable(AllomfreeError, ConnectionError):
    """No usable connection to the broker."""

    exit_code = 1
