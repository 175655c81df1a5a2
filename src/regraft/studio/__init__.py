"""One local page over the run folders: `regraft studio`.

Comes in: a folder, perhaps a file of texts to label, and requests from a browser on this machine.
Goes out: the page in ../web and what it asks for. Everything is served from here.
"""
