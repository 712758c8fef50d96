"""Chapter 11: find where an inf or a NaN comes from."""
