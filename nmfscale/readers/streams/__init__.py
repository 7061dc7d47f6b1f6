"""Counts that are read a range of rows at a time, and counts derived from them."""
