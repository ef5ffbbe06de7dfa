"""Backbone, heads and word vectors: everything needed to predict."""
