"""The one error that the course raises about itself: its folder, the reader's files, a chapter's name."""


class CourseError(RuntimeError):
    """Something is wrong that the reader can put right: the message is one line, with the cause and the cure."""
