"""Fleets that exist only here: as counts, as reports, or as real agents. See docs/simulate.md.

    model/       what devices hold and do, and what they would send; no collector in it
    depths/      a campaign over a fleet: as statistics, report by report, through a broker, agents
    collected    what a collector has at the end, and the truth beside it: what every depth makes
    runs         from the options of a command to a finished run
    records      a finished run in a directory, and two of them compared
    text, figure, progress   what a person sees
    cli          the commands of scripts/simulate_fleet.py
    scaling      what one round costs a collector as the fleet grows

A module imports only those above it, except that `cli` and `runs` use everything.
"""
