"""Samples of a question: their topics, groups, units, strata and weights; the counts of a fit."""
