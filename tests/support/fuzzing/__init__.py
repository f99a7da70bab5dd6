"""Fuzzing: what is fuzzed, how inputs are changed, and the loop that does it (S2)."""
