"""Counts to try things with: a built-in corpus, simulated counts."""
