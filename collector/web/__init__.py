"""The analyst's page: a process of its own that only reads, so that ingest never waits for it."""
