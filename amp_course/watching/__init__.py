"""What a training did, as records: calls, regions, gradients, updates, inf and NaN. Knows no verdict."""
