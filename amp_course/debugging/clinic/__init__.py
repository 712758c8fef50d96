"""The bug clinic: twelve short training scripts with one fault each, taken from real threads."""
