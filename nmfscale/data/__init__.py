"""Counts: where they live and how they are read; knows no model."""
