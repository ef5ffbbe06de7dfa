"""The rows of METHODS, one module for each group that `fewtags methods` shows."""
