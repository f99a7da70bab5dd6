"""What the two programs share. Not part of the protocol: other implementations need none of it.

settings       settings from flags, variables and TOML; addresses, credentials; errors of both
cli            command lines: shared options, clear errors, commands to paste, `doctor` findings
output         streams that escape everything hidden; JSON; logs
system         private durable files, locks, the kernel's clock, the service manager
signing        signatures of manifests, by a library that is loaded for them alone
backoff        growing pauses between attempts to connect or to send
mqtt           an MQTT connection over paho, one turn of the network at a time
packets        the packet path: packets measured in a buffer, TLS, the buffered socket
memory_broker  an MQTT broker in this process
"""
