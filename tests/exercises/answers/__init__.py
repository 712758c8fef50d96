"""Answers that readers may give, right and wrong; for each wrong one, words that its own diagnosis must hold."""
