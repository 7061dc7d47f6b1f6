"""Texts: documents, words, vocabularies."""
