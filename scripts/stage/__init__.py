"""Real programs for a while, for the demonstration, the simulator, the benchmarks and the tests.

programs       commands and variables of our programs, free of the user's own settings
processes      one child process with its log: start, stop, kill, wait for something
collector      the collector and its broker: connect, kill, restart, wait until sealed
agents         many real agents in a few processes
agent_process  what one of those processes runs
memory         the largest size of this process so far
publisher      the messages of many devices through one connection
"""
