"""The collector: counts every report exactly once and publishes histograms with error bars.

docs/architecture.md lists its modules, and which may import which.
"""
