"""NATS as a worker uses it: one connection, and the stream of reports pulled from it.

    frames.py      what the server sends, measured and cut apart
    wire.py        the socket: reads ahead within bounds, writes once per batch
    connection.py  one connection: TLS, credentials, questions and answers, signs of life
    consumer.py    the durable consumer that all workers share: what it has to be like
    looking.py     the same looked at from outside, for `doctor`
    stream.py      the reports as a source
    connect.py     connects to one server of a cluster after the other

Hand-made, because it costs a few microseconds a report where the usual client costs eighty, and
because every length is checked before anything grows (A5).
"""
