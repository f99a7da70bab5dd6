"""The generated parts of the specification, made from the code (see scripts/spec_tables.py).

blocks.py     what lies between two markers of a document
channels.py   every topic that the code can build, and who uses it
schemas.py    what a field or an item may hold, as asyncapi.yaml and README.md write it
asyncapi.py   the blocks of asyncapi.yaml
readme.py     the tables of README.md
examples.py   its messages, byte by byte
"""
