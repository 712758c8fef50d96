"""The patients: each file is a script that `python` runs, and needs nothing but torch.
Their faults are there on purpose.
"""
