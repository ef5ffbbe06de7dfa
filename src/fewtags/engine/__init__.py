"""A run: training, evaluation, checkpoints and logs. Knows every method through one contract and names none."""
