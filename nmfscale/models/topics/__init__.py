"""Topics of a fitted model: order, merging, names, labels."""
