"""Brokers: the embedded one, and the configuration of those that run elsewhere.

config       who may do what, the plan, and the files of mosquitto and NATS
authority    certificates issued by an authority of our own
credentials  the broker's certificate, and one credential per client, as files
directory    everything a broker needs in one private directory; enrolment and revocation
embedded     NATS from its wheel, verified by hash, as a child process
choose       which broker to use, and whether its configuration changed
auditor      sets NATS's limits, and probes what must be refused
"""
