"""A substitute for librosa, for vits: what it imports,
and filters of which only the shape is librosa's.
"""
