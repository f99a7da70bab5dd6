"""The agent on a device: draws once, remembers for life, reports every round."""
