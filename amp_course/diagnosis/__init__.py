"""The one catalogue of faults, the rules that make findings of records, and the one report."""
