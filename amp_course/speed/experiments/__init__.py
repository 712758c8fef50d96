"""The experiments of chapter 09: each cause is produced, measured, fixed and measured again,
all sides in turn in one run.
"""
