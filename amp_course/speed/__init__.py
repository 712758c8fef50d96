"""Chapter 09: why AMP is not faster, what it could buy here, and what ate the difference."""
