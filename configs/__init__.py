"""One file an experiment, its command on top."""
