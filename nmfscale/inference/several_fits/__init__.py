"""Many fits: one for each of several sources of counts, and the topics that they have in common."""
