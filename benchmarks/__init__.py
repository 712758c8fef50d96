"""Side-by-side measurements: the loop and the rounding beside their peers, the cost of measuring, the panels."""
