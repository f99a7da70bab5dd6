"""Fleets that exist only here: as counts, as reports, or as real agents. See docs/simulate.md.

    model/       what devices hold and do, and what they would send; no collector in it
    depths/      a campaign over a fleet: as statistics, report by report, through a broker, agents
    counted      what a collector has counted at the end, and the truth beside it
    published    the results that it would publish of that
    collected    a whole campaign of both: what every depth makes
    runs         from the options of a command to a finished run
    records      a finished run in a directory, and two of them compared
    text, figure, progress   what a person sees
    cli          the commands of `allomfree-sim`
    scaling      what one round costs a collector as the fleet grows

A module imports only those above it, except that `cli` and `runs` use everything.
"""
