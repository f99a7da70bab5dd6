"""Simulated fleets: as counts, as reports, or as real agents. See docs/simulate.md.

population  what devices hold and how they behave; the paper's data sets
counts      counts of many devices without the devices
bulk        randomisers for many devices at once
fleet       every device and every report, a batch at a time
results     what a collector has counted at the end, what it would publish, and the truth
depths      a campaign over a fleet: as statistics, report by report, through a broker, agents
runs        from the options of a command to a finished run, stored, shown and compared
cli         the commands of `allomfree-sim`
"""
