"""File formats of counts, and their detection."""
