"""Files and objects of others: every source of counts, opened by one door."""
