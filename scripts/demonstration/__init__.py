"""What ./scripts/demo runs.

__main__  options and exit status
steps     one collector or a cluster: start, open, report, kill, show
checks    the simulated population, what is shown of it, and what must hold
"""
