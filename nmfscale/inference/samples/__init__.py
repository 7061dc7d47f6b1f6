"""Samples that have a topic, and clusters of samples."""
