"""Real programs for a while, for the demonstration, the simulator, the benchmarks and the tests.

programs       commands and variables of our programs, free of the user's own settings
processes      one child process with its log: start, stop, kill, wait for something
collector      the collector and its broker: connect, kill, restart, wait until sealed
agents         many real agents in a few processes
agent_process  what one of those processes runs
memory         the largest size of this process so far
brokers        NATS and mosquitto, each on a port of its own
cluster        three NATS nodes, PostgreSQL and workers
postgres       a PostgreSQL server for a while, also where nobody is root
paho_thread    the end of a paho client
publisher      the messages of many devices through one connection
tally          a collector in a hundred lines, where only the agent is of interest
"""
