"""Nothing of it is called."""
