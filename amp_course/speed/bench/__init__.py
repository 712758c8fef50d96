"""`amp-course bench`: measure a machine, write its page (text, JSON, PNG), recommend a recipe; or
compare two pages.
"""
