"""Readers of counts in files and in objects of other libraries."""
