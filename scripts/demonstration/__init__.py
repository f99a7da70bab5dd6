"""What ./scripts/demo shows.

command      its options, and the exit status
telling      what every demonstration says, opens and shows
story        the order of events: collector, campaign, agents, rounds, results
population   the campaign, and what every simulated device really holds
rounds       watch the rounds fill, and kill the collector in the middle of one
results      histograms with the truth, the owner's view, a figure
cluster      the same with three nodes, a database and three workers
strikes      kill -9 of one after another, and how long it took to recover
checks       what must have held
"""
