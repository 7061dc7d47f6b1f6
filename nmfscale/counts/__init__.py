"""Counts, the input of a fit; this room imports neither readers of files nor models."""
