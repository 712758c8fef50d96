"""Chapter 03: why a language model loses its place in bf16."""
