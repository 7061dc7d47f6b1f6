"""Loadings of rows with fixed factors, what they score, and penalties on them."""
