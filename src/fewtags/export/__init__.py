"""Deployable models: one self-contained file, verified against torch after writing."""
