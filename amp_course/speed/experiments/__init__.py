"""The experiments of chapter 09: each produces a cause, fixes it, and times both in turn."""
