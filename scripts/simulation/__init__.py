"""Fleets that exist only here: as counts, as reports, or as real agents. See docs/simulate.md."""
