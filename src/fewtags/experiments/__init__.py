"""Comparisons of many runs: the grid and its bench, the paper's tables, the report page."""
