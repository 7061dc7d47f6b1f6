"""Scores, matching and merging of topics that are fitted."""
