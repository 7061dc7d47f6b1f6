"""Choice of a fit: number of topics, stability, quality, tables of fits."""
