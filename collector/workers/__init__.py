"""One of several workers: it counts its part of the reports, and leads if no other does.

    clock.py    the database's time, between two of its beats
    drained.py  have all workers counted what the broker took before a round's deadline?
    reading.py  a source, its batches, and signs of life
    leading.py  the lease, the one link that publishes, and what only a leader may do
    feed.py     what all workers counted, put on the leader's pages
    service.py  the loop

Claims:
  W5  who leads publishes only while its lease lasts by a clock that nobody can set; a new leader's
      connection has the same name, so that the broker ends the old one's
  W6  a round is sealed when every worker that lives has committed all which the broker took for it
      before the round was due; a silent worker is fenced first, and then commits nothing more
"""
