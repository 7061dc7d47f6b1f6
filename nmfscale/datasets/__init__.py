"""Example data: a built-in corpus and simulated counts."""
