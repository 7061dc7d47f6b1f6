"""Results of the questions in `nmfscale.inference`: estimates, intervals, tests, tables."""
