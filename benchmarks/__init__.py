"""Side-by-side measurements: the course's loop beside its peers, and the cost of its measuring."""
