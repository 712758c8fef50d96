"""What a script tells the tracer of itself."""

meta_vars = {}
