"""Starts of a fit, and moves that leave a local optimum."""
