"""The public ward: training scripts of public repositories, as they stand,
and what the doctor says of them.
"""
