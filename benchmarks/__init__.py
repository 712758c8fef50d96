"""Side-by-side measurements: the loop and the rounding next to their peers, the cost of measuring,
the panels.
"""
