"""Batches of samples: how topics, features and clusters differ between them."""
