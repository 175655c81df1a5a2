"""A classifier over HTTP: `regraft serve RUN`.

limits.py is light, for the command line; everything else needs the extra `serve`.
"""
