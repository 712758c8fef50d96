"""The map of the course with the learner's progress, for the start page."""

from __future__ import annotations

import html
from urllib.parse import quote

from amp_course.checking import progress
from amp_course.course import CHAPTERS, Chapter, available, hours
from amp_course.kit.paths import work_dir

_ALL_SOLVED = "You have solved every exercise there is so far."


def _whole() -> str:
    return "The whole course: about {} hours of reading and {} hours of exercises.".format(*hours())


def _title(chapter: Chapter) -> str:
    return f"{chapter.number:02d} · {chapter.word}"


class CourseMap:
    """A table of the chapters: the question of each, how many exercises are solved, and links."""

    def __init__(self) -> None:
        self.progress = progress.load()
        self.ready = available()

    def counts(self, chapter: Chapter) -> tuple[int, int]:
        """Return (solved, all) of a chapter's exercises."""
        exercises = chapter.exercises() if chapter in self.ready else ()
        solved = [one for one in exercises if self.progress.state(one.id) == "correct"]
        return len(solved), len(exercises)

    def next(self) -> Chapter | None:
        """Return the first later chapter with an exercise to solve; None if all are solved."""
        for chapter in self.ready:
            solved, count = self.counts(chapter)
            if chapter.number > 0 and solved < count:
                return chapter
        return None

    def __repr__(self) -> str:
        lines = []
        for chapter in CHAPTERS:
            solved, count = self.counts(chapter)
            state = f"{solved} of {count} solved" if chapter in self.ready else "in the making"
            time = f"{chapter.minutes} + {chapter.exercise_minutes()} min"
            lines.append(
                f"{chapter.number:02d} {chapter.word:<12} {state:<16} {time:<14}{chapter.question}"
            )
        following = self.next()
        last = f"Next: {following.stem}.ipynb" if following else _ALL_SOLVED
        return "\n".join(filter(None, [self.progress.note, *lines, _whole(), last]))

    def _repr_html_(self) -> str:
        rows = "".join(self._row(chapter) for chapter in CHAPTERS)
        note = f"<p>{html.escape(self.progress.note)}</p>" if self.progress.note else ""
        head = "".join(
            f'<th style="text-align:left">{text}</th>'
            for text in ("no.", "chapter", "the question", "reading", "exercises", "solved")
        )
        last = _ALL_SOLVED
        if following := self.next():
            last = f'<b>Next:</b> <a href="{following.stem}.ipynb">{_title(following)}</a>'
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f"{note}{table}<p>{_whole()}</p><p>{last}</p>"

    def _row(self, chapter: Chapter) -> str:
        ready = chapter in self.ready
        name = f'<a href="{chapter.stem}.ipynb">{chapter.word}</a>' if ready else chapter.word
        solved, count = self.counts(chapter)
        if not ready:
            work = '<span style="opacity:.6">in the making</span>'
        else:
            bar = (
                f'<progress aria-label="solved" value="{solved}" max="{max(count, 1)}" '
                f'style="width:6em"></progress>'
            )
            work = f"{bar} {solved} of {count}"
            if (work_dir() / f"{chapter.stem}.ipynb").is_file():
                folder = quote(work_dir().name)
                work += (
                    f' · <a href="../{folder}/{chapter.stem}.ipynb" aria-label="exercises of '
                    f'{_title(chapter)}">open</a>'
                )
        minutes = (f"{time} min" for time in (chapter.minutes, chapter.exercise_minutes()))
        cells = (f"{chapter.number:02d}", name, html.escape(chapter.question), *minutes, work)
        return (
            "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"
        )
