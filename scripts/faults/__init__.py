"""A whole fleet under faults, and an oracle that compares every count: what `chaos.py` runs.

proxy.py     a network that stalls, slows down, resets and goes half-open
clock.py     a program under a wall clock that can be set
campaigns.py what is asked: every bulk device has a value of its own
bulk.py      many devices that resend until they have their receipts
agents.py    real agents, in a process that can be killed
site.py      broker, collector, agents and networks: what faults happen to
kinds.py     the faults, one by one
plan.py      which fault, when and for how long: from a seed
oracle.py    what was lost, doubled or changed
run.py       one run from start to verdict
many.py      nodes, workers and the database of a cluster, and what fails there
many_run.py  the same run on a cluster
"""
