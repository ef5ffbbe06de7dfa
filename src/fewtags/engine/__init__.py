"""A run: training, evaluation, checkpoints and logs. Uses every method through one contract and names none."""
