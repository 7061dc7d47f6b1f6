"""Ranges of rows of tables, names and masks: the base of all formats."""
