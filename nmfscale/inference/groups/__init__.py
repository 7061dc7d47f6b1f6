"""Do groups of samples differ in their topics: permutations, bootstrap of weights."""
