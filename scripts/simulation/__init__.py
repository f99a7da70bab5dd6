"""Simulated fleets: as counts, as reports, or as real agents. See docs/simulate.md.

population  what devices hold and how they behave; the paper's data sets, records of your own
counts      counts of many devices without the devices
devices     many devices at once, and every report they send
campaigns   a campaign over a fleet, at each depth, and what a collector publishes of it
runs, cli   the commands of `allomfree-sim`
"""
