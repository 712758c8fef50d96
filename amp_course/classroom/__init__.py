"""A class with nbgrader: assignments whose points only a right answer earns,
graded student by student, and the class's page.
"""
