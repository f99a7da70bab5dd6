"""What the two programs share. Not part of the protocol: other implementations need none of it.

settings       one table of settings: flags, variables, the TOML file, help
commands       the command line: shared options, clear errors, JSON or text
pasting        commands that are printed to be pasted
address        broker and campaign addresses, credentials
mqtt           what both MQTT clients do alike with paho: prepare, connect, explain a refusal
client         paho over the buffered socket: one turn of the network
buffered       a socket that reads and writes once per batch, within bounds
packets        MQTT packets measured, and messages cut out of a buffer
lazily         modules of libraries that are loaded when they are used
names          session names that nobody can guess
private_files  files for their owner only, written whole and durably
locks          locks between processes
signing        signatures of manifests, by a library that is loaded for them alone
output         the last gate before a terminal: nothing hidden passes
logs           lines on a terminal, JSON elsewhere
findings       what a `doctor` finds
kernel_clock   whether something keeps the machine's clock right
systemd        messages to the service manager
errors         SettingsError, BrokerUnreachable
"""
