"""Brokers: the one in the box, and the configuration of those that run elsewhere.

access      who may do what, once, for every kind of broker
authority   certificates: an authority of our own, servers, clients
passwords   made by us, stored by the broker as hashes
mosquitto   that broker's files
nats        that broker's files
directory   everything a broker needs, in one private directory; enrolment and revocation
embedded    NATS from its wheel as a child process
probe       tries what must be refused
"""
