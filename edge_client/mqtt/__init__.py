"""Talking MQTT.

link.py       what a connection is (`Link`), and the adapter to paho (`PahoLink`)
memory.py     a broker in this process, for tests
connector.py  the one place where a connection is made, after the check for plain text
"""
