"""Somebody who really runs a collector and an agent on the machine of a simulation."""

from __future__ import annotations

from pathlib import Path


def real_user(home: Path) -> dict[str, str]:
    """Variables of a user whose settings, in variables and in files, make a program that reads
    them end at once."""
    directory = home / ".config" / "allomfree"
    directory.mkdir(parents=True)
    for program in ("collector", "edge"):
        (directory / f"{program}.toml").write_text('broker = "real"\n')
    return {"HOME": str(home), "ALLOMFREE_BROKER": "real", "ALLOMFREE_KEEPALIVE": "real"}
