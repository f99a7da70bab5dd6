"""What ./scripts/demo shows.

command      its options, and the exit status
story        the order of events: collector, campaign, agents, rounds, results
population   the campaign, and what every simulated device really holds
rounds       watch the rounds fill, and kill the collector in the middle of one
results      histograms with the truth, the owner's view, a figure
checks       what must have held
"""
