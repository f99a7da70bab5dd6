"""What the owner is shown.

facts.py       the shape of it
statement.py   made from the store, by the code that sends
ways.py        how a question is answered, in words
text.py        for a terminal
owner_page.py  as one HTML file
curve.py       the loss of t reports as a picture
"""
