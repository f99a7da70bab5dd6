"""One tree of errors: whoever catches `EdgeError` has caught every mistake in a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client import Credentials, EdgeClient, EdgeError
from edge_client.errors import SettingsError
from edge_client.settings import resolve
from protocol_spec.programs.settings import parse_broker


def test_every_mistake_in_a_setting_is_an_edge_error(tmp_path: Path) -> None:
    """Also those that code shared with the collector finds."""
    file = tmp_path / "edge.toml"
    file.write_text("no_setting = 1\n")
    missing = Credentials("me", "secret", ca_file=str(tmp_path / "none.pem"))
    with EdgeClient(tmp_path / "state", credentials=missing) as client:
        for mistake in (
            lambda: resolve({}, config=file),
            lambda: resolve({"password_file": str(tmp_path / "none")}).credentials(),
            lambda: EdgeClient(tmp_path / "other", credentials_for=["mqtts://me@b"]),
            lambda: client.invitation("http://broker.example"),
            lambda: client.connector.link(parse_broker("mqtts://localhost")),
            lambda: client.connector.link(parse_broker("mqtt://192.0.2.1")),
        ):
            with pytest.raises(EdgeError) as refused:
                mistake()
            assert type(refused.value) is SettingsError
            assert (refused.value.exit_code, isinstance(refused.value, ValueError)) == (2, True)
