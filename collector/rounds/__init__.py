"""Rounds: from counts to published histograms.

sealing.py     when a round is due and drained, making it final, and what of it is released
results.py     counts to histograms with error bars, and as JSON; pure
publishing.py  manifests, states and results at the broker; discovery for Home Assistant
"""
