"""A classifier behind HTTP: `regraft serve RUN`.

Comes in: a run folder, and requests. Goes out: answers that equal those of `regraft predict`.
limits.py is light, for the command line; all else loads the libraries of the extra `serve`.
"""
