"""AnnData objects: where results are kept in them, and what is read from them by name."""
