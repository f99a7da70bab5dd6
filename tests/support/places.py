"""Where things lie, for tests at any depth."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"  # reference material beside a checkout; often not there
