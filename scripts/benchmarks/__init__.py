"""What `benchmark.py` measures.

report       measurements with their limits, as a table, as JSON and in docs/benchmarks.md
workload     the campaign, the brokers and the page's readers that several benchmarks use
children     programs that run in processes of their own: readers of reports, and publishers
agent        what the agent costs a device; CPU time of short commands
ingest       durable counting: against bare paho, over TLS, into PostgreSQL, by several workers
live         counting while devices publish; what a report costs the broker
soak         a constant rate for a long time: nothing may grow
peers        other libraries: speed and error; peer_driver runs inside their environment
accuracy     errors of the mechanisms
"""
