"""How deep a simulation goes; each depth gives a `simulation.collected.Simulated`.

statistics      counts alone: no device exists
reports         every report, counted at once
collecting      every report through a real collector's admission, store and sealing
live            a real collector on a campaign whose rounds begin soon
through_broker  every report through a broker to a real collector, in real time
agents          real agents, a broker and a collector, in real time
"""
