"""What the two programs share. Not part of the protocol: other implementations need none of it.

settings       one table of settings: flags, variables, the TOML file, help
commands       the command line: shared options, clear errors, JSON or text
address        broker and campaign addresses, credentials
mqtt           what both MQTT clients do alike with paho (the only module that imports it)
names          session names that nobody can guess
private_files  files for their owner only, written whole and durably
locks          locks between processes
logs           lines on a terminal, JSON elsewhere
findings       what a `doctor` finds
systemd        messages to the service manager
errors         SettingsError, BrokerUnreachable
"""
