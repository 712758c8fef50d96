"""The helper package of the course on automatic mixed precision training in PyTorch.

Importing it loads nothing else: notebooks write `from amp_course.loop import train`.
"""

__version__ = "0.1.0"
