"""Counts: what a fit reads; knows no file and no model."""
