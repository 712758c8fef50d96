"""The bug clinic: thirteen short training scripts with one fault each, taken from real threads."""
