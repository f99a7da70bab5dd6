"""Real programs in temporary directories, for demo, simulator, benchmarks and tests.

processes  child processes with a log: start, stop, kill, wait; ports; memory
brokers    NATS and mosquitto; a fast publisher; `Tally`, a minimal collector
collector  the real collector; PostgreSQL; a cluster of three NATS nodes and several workers
agents     many real agents in a few processes
"""
