"""What `scripts/benchmark.py` measures, one module each."""
