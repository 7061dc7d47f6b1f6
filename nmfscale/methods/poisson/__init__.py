"""Poisson NMF: its solvers, starts, priors and derivatives."""
