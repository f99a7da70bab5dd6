"""The page's token, needed wherever other machines can connect."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from collector.settings import Address, Settings
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.private_files import create_durably

VARIABLE: Final = "ALLOMFREE_PAGE_TOKEN"
FILE: Final = "page.token"
SHORTEST: Final = 16


def new_token() -> str:
    """192 random bits as text."""
    return secrets.token_urlsafe(24)


def needed(settings: Settings, address: Address) -> str | None:
    """The token, or None where only this machine can connect."""
    if address.is_loopback:
        return None
    return page_token(settings.data_dir, settings.page_token_file)


def page_token(
    directory: Path,
    file: Path | None,
    environ: Mapping[str, str] = os.environ,
    make: Callable[[], str] = new_token,
) -> str:
    """The token from its file or the environment, else one made once and kept with the data."""
    if file is not None:
        return _checked(_read(file), str(file))
    if environ.get(VARIABLE):
        return _checked(environ[VARIABLE], VARIABLE)
    kept = directory / FILE
    if not kept.exists():
        try:
            create_durably(kept, make())  # of several processes that do, the first one's stays
        except OSError as error:
            raise SettingsError(
                f"{kept} cannot be created: {error.strerror}. Nothing was served; name a token "
                "file with --page-token-file"
            ) from None
    return _checked(_read(kept), str(kept))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(
            f"the page's token {path} cannot be read: {reason}. Nothing was served; correct the "
            "file, or name another with --page-token-file"
        ) from None


def _checked(token: str, where: str) -> str:
    if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
        raise SettingsError(
            f"{where} holds no usable token: it must be {SHORTEST} or more printable ASCII "
            "characters without spaces. Nothing was served"
        )
    return token
