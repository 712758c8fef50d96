"""Chapter 01: what 16 bits can hold."""
