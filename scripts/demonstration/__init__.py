"""The story that ./scripts/demo tells: see `story`."""
