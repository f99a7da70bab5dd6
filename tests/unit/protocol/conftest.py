"""Property tests draw the same examples in every run and leave no files behind."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("contract", derandomize=True, deadline=None, database=None)
settings.load_profile("contract")
