"""Passwords, created here: long and random, so that even a cheap hash cannot be reversed.

The cheap hash matters: a fleet that reconnects after a broker's restart is thousands of hashes at
once, and a password chosen by `new_password` has 192 random bits whatever the hash costs.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from typing import Final

from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.installing import install

_MOSQUITTO_ROUNDS: Final = 101  # mosquitto_passwd's own
_BCRYPT_COST: Final = 5


def new_password() -> str:
    """192 random bits as text."""
    return secrets.token_urlsafe(24)


def for_mosquitto(password: str) -> str:
    """The hash in mosquitto's password file: PBKDF2 with SHA-512."""
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _MOSQUITTO_ROUNDS)
    return f"$7${_MOSQUITTO_ROUNDS}${_base64(salt)}${_base64(digest)}"


def for_nats(password: str) -> str:
    """The hash in NATS's list of users: bcrypt."""
    try:
        import bcrypt  # noqa: PLC0415 - only for NATS
    except ImportError:
        raise missing("bcrypt") from None
    hashed: bytes = bcrypt.hashpw(password.encode(), bcrypt.gensalt(_BCRYPT_COST, prefix=b"2a"))
    return hashed.decode()


def missing(library: str) -> SettingsError:
    """The error where the broker's extra is not installed."""
    return SettingsError(
        f"{library} is not installed; nothing was changed. Run: {install('broker')}"
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
