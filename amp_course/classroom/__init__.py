"""A class with nbgrader: assignments that give points for right answers alone, grading, and the
class's page.
"""
