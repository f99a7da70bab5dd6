"""The operator's key: made once, private, replaced on purpose; `open` signs with it (P4)."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import read_store
from collector.errors import CollectorError, StorageFailure
from collector.opening import OperatorKey
from protocol_spec import Manifest
from protocol_spec.programs import signing
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken
from tests.support.hostile import TEXT_A


@pytest.fixture
def signed(home: Path, data: Path, cli: Cli) -> Path:
    """A manifest that names the key of the data directory."""
    operator = facts_of(cli("operator-key", "create", "--data-dir", data, "--json"))["operator"]
    file = home / "signed.toml"
    file.write_text(TEXT_A.replace("[rounds]", f'operator = "{operator}"\n[rounds]'))
    return file


def test_a_key_is_made_once_and_private(cli: Cli, data: Path) -> None:
    assert f"operator-key --data-dir {data} create" in mistaken(
        cli, 1, "operator-key", "--data-dir", data
    )
    made = facts_of(cli("operator-key", "create", "--data-dir", data, "--json"))
    file = Path(made["file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert signing.public_key(file.read_bytes()).hex() == made["operator"]
    assert facts_of(cli("operator-key", "--data-dir", data, "--json")) == made
    text = cli("operator-key", "--data-dir", data).stdout
    assert f'operator = "{made["operator"]}"' in text
    assert file.read_bytes().hex() not in text
    assert "there is already an operator key" in mistaken(
        cli, 1, "operator-key", "create", "--data-dir", data
    )
    assert facts_of(cli("operator-key", "--data-dir", data, "--json")) == made


def test_rotation_asks_first(cli: Cli, data: Path, signed: Path) -> None:
    before = OperatorKey(data).public
    refused = cli("operator-key", "rotate", "--data-dir", data, answer="n\n")
    assert (refused.exit_code, OperatorKey(data).public) == (1, before)
    assert "Nothing was changed." in refused.stderr
    told = facts_of(cli("operator-key", "rotate", "--yes", "--data-dir", data, "--json"))
    assert told["previous"] == before.hex()
    assert told["operator"] == OperatorKey(data).public.hex() != before.hex()


def test_open_signs(cli: Cli, data: Path, signed: Path) -> None:
    words = ("open", signed, "--data-dir", data, "--broker", NOBODY)
    manifest = Manifest.from_file(signed)
    told = facts_of(cli(*words, "--json"))
    assert told["operator"] == manifest.operator.hex()
    assert f"Signed by {told['operator']}" in cli(*words).stdout
    with closing(read_store(data)) as store:
        signature = store.signature(store.campaign(None).id)
    assert signing.is_signed_by(manifest.operator, manifest.digest, signature)


def test_what_was_signed_stays_signed_after_a_rotation(cli: Cli, data: Path, signed: Path) -> None:
    words = ("open", signed, "--data-dir", data, "--broker", NOBODY)
    assert cli(*words).exit_code == 0
    cli("operator-key", "rotate", "--yes", "--data-dir", data)
    assert cli(*words).exit_code == 0
    signed.write_text(signed.read_text().replace("First", "Third"))
    told = mistaken(cli, 1, *words)
    assert "names the operator" in told
    assert "nothing was opened" in told


def test_a_key_that_is_not_named_must_be_meant(cli: Cli, data: Path, signed: Path) -> None:
    signed.write_text(TEXT_A)
    words = ("open", signed, "--data-dir", data, "--broker", NOBODY)
    told = mistaken(cli, 1, *words)
    assert f'Add operator = "{OperatorKey(data).public.hex()}"' in told
    opened = cli(*words, "--unsigned")
    assert opened.exit_code == 0
    assert "Unsigned: " in opened.stdout


def test_an_operator_without_a_key_here(cli: Cli, data: Path, signed: Path) -> None:
    (data / "operator.key").unlink()
    told = mistaken(cli, 1, "open", signed, "--data-dir", data, "--broker", NOBODY)
    assert "there is no key here; nothing was opened" in told
    with closing(read_store(data)) as store:
        assert store.campaigns() == []


def test_a_key_that_cannot_be_used(tmp_path: Path) -> None:
    key = OperatorKey(tmp_path)
    key.create()
    key.path.chmod(0o640)
    with pytest.raises(StorageFailure, match="can be read by others"):
        _ = key.public
    key.path.chmod(0o600)
    key.path.write_bytes(b"short")
    with pytest.raises(StorageFailure, match="is damaged"):
        key.create()
    key.path.unlink()
    with pytest.raises(CollectorError, match="there is no operator key"):
        key.rotate()
