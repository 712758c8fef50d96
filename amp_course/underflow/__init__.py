"""Chapter 02: how numbers die quietly."""
