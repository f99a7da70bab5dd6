"""Brokers: the embedded one, and the configuration of those that run elsewhere.

Each module imports only those above it; from outside come errors, settings, mqtt.link (probe) and
child_process (embedded).

access        who may do what, once, for every kind of broker
plan          what a broker's configuration says
passwords     created here, stored by the broker as hashes
authority     certificates issued by an authority of our own
mosquitto     that broker's files
nats          that broker's files
certificates  the broker's certificate, our own or given
credentials   one name's credential as files
directory     everything a broker needs in one private directory; enrolment and revocation
embedded      NATS from its wheel as a child process
choose        which broker to use
probe         tries what must be refused
"""
