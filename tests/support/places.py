"""Where things lie, for tests at any depth."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"  # reference material beside a checkout; often not there
QUICK_DISK: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - no power cut
