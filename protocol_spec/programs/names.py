"""Names for sessions at the broker that nobody can guess."""

from __future__ import annotations

import os


def unguessable(prefix: str) -> str:
    """A name for a session at the broker: whoever knows one can take the session over."""
    return f"{prefix}-{os.urandom(8).hex()}"
