"""What people touch: the command line, the server, the studio, the course, the demo."""
