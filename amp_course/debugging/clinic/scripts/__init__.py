"""Scripts with a fault each: `python` runs any of them, and needs nothing but torch.
Their faults are there on purpose.
"""
