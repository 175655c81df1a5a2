"""A local page over the run folders: `regraft studio`. Everything it shows is served from here."""
