"""Features that make a topic, and pairs of features."""
