"""`amp-course bench`: measure a machine, write its page (text, JSON, PNG), recommend one recipe;
compare two pages.
"""
