"""What the collector serves over HTTP, in a thread of its own with its own read-only database."""
