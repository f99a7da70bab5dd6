"""The page's token, needed wherever others than this machine can connect."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from collector.settings import Address, Settings
from protocol_spec.programs.errors import SettingsError

VARIABLE: Final = "ALLOMFREE_PAGE_TOKEN"
FILE: Final = "page.token"
SHORTEST: Final = 16


def needed(settings: Settings, address: Address) -> str | None:
    """The token, or None where only this machine can connect."""
    if address.is_loopback:
        return None
    return page_token(settings.data_dir, settings.page_token_file)


def page_token(directory: Path, file: Path | None, environ: Mapping[str, str] = os.environ) -> str:
    """The token from its file or the environment, else one made once and kept with the data."""
    if file is not None:
        return _checked(_read(file), str(file))
    if environ.get(VARIABLE):
        return _checked(environ[VARIABLE], VARIABLE)
    return _checked(_kept(directory / FILE), str(directory / FILE))


def _kept(path: Path) -> str:
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise SettingsError(f"{path} cannot be made: {error.strerror}") from None
    return _read(path)


def _make(path: Path) -> None:
    """Whole or not at all; of several processes that make one at once, the first one's stays."""
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(secrets.token_urlsafe(24))
            opened.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        Path(unfinished).unlink()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(
            f"the page's token {path} cannot be read: {reason}. Nothing was served; mend the file, "
            "or name another with --page-token-file"
        ) from None


def _checked(token: str, where: str) -> str:
    if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
        raise SettingsError(
            f"{where} holds no usable token: it must be {SHORTEST} or more printable ASCII "
            "characters without spaces. Nothing was served"
        )
    return token
