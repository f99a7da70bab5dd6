"""A whole fleet under faults, and an oracle that compares every count: what `chaos.py` runs.

proxy    a network that stalls, slows down, resets and goes half-open
program  a program under a wall clock that can be set, and that can be told where to die
devices  many devices in one process that resend until they have their receipts, and real agents
oracle   what was lost, counted twice or changed
sites    a collector with its broker and agents, or a cluster; and the faults that happen to each
run      which fault and when, from a seed; one run from start to verdict
"""
