"""From files on disk to batches: readers, the three-state labels, the partial-label protocol, loading."""
