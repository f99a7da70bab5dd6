"""What the two programs do alike: addresses, settings, logs, service manager.

Not part of the protocol: an implementation in another language need not copy any of it.
"""
