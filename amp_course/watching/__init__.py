"""What a training did, as records: calls, regions, gradients, updates, inf, NaN. No verdict."""
