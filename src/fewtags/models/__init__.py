"""Backbone, heads and word vectors: everything that is needed to predict."""
