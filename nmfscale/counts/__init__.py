"""Counts, the input of a fit; nothing here knows of files or models."""
