"""The class's page: HTML for the instructor, HTML without names for the projector, and CSV.
It loads nothing from other hosts.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from pathlib import Path

from amp_course.classroom.grading import Answer, Result
from amp_course.classroom.names import printable
from amp_course.classroom.report import ClassReport, ExerciseReport, MistakeMet, was_graded
from amp_course.kit.markup import counted, inline_html

FLAG = "⚑"  # marks a student whose points are withheld
_FEW = 3  # the numbers of fewer students would show who they are
_SIGNS = {
    "correct": ("✓", "solved"),
    "not yet": ("✗", "not yet"),
    "not attempted": ("○", "not attempted"),
    "no verdict": ("–", "no verdict"),
    "withheld": ("!", "points withheld"),
}


def page(found: ClassReport, projected: bool) -> str:
    """Return the whole page; the projected one shows no single student."""
    title = f"{found.chapter.stem}: {found.chapter.question}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if projected and found.graded < _FEW:
        few = counted(found.graded, "submission")
        parts.append(
            f"<p>{few}: too few to show what the class did without showing what one person did.</p>"
        )
        return _document(title, "".join(parts), projected)
    today = f"{date.today().day} {date.today():%B %Y}"
    many = counted(len(found.results), "submission")
    parts.append(f'<p class="soft">{many} · {average(found)} · {today}</p>')
    if found.graded < len(found.results):
        rest = len(found.results) - found.graded
        be = "is" if rest == 1 else "are"
        parts.append(
            f"<p>{counted(rest, 'submission')} could not be graded and {be} in no count below.</p>"
        )
    if found.exercises:
        parts += [*_teach_next(found), *_exercises(found), *_mistakes(found, 2 if projected else 1)]
    if not projected:
        parts += _students(found)
    return _document(title, "".join(parts), projected)


def average(found: ClassReport) -> str:
    """Return the average of the graded submissions: "9.9 of 13 points on average"."""
    graded = [found.points_of(result) for result in found.results if was_graded(result)]
    if not graded:
        return "none could be graded"
    return f"{sum(graded) / len(graded):.1f} of {_most(found)} points on average"


def _most(found: ClassReport) -> int:
    return sum(answer.of for answer in found.results[0].answers)


def index(reports: Sequence[ClassReport]) -> str:
    """Return the page with a line on each chapter, and links to the chapters' pages."""
    rows = []
    for found in reports:
        stem = found.chapter.stem
        link = f'<a href="{stem}.html">{stem}: {html.escape(found.chapter.question)}</a>'
        more = (
            f'<a href="{stem}-projected.html">{stem} for the projector</a>, '
            f'<a href="{stem}.csv">{stem} as CSV</a>'
        )
        next_ = ", ".join(_title(one) for one in found.teach_next) or "nothing again"
        rows.append([link, len(found.results), average(found), next_, more])
    heads = ["chapter", "submissions", "points", "teach next", "more"]
    body = f"<h1>Your class</h1>{_table('chapters', heads, rows)}{_all_chapters(reports)}"
    return _document("Your class", body, False)


def _all_chapters(reports: Sequence[ClassReport]) -> str:
    """Return the table of all students' points in each chapter, even if they submitted nothing."""
    results = {(one.student, found.chapter.stem): one for found in reports for one in found.results}
    names = {student: name for found in reports for student, name in found.names.items()}
    of = {found.chapter.stem: _most(found) for found in reports}
    rows = []
    for student in sorted({student for student, _ in results} | set(names)):
        total, cells = 0.0, []
        for found in reports:
            result = results.get((student, found.chapter.stem))
            total += found.points_of(result) if result else 0
            cells.append("–" if result is None else f"{found.points_of(result):g}{_flag(result)}")
        who = html.escape(printable(names.get(student) or student))
        rows.append([who, *cells, f"{total:g}"])
    heads = [f"{stem}<br>of {most}" for stem, most in of.items()]
    heads = ["student", *heads, f"all<br>of {sum(of.values())}"]
    numbers = range(1, len(heads))
    points = _table("points of each student in each chapter", heads, rows, numbers)
    key = f"– nothing submitted. {FLAG} points withheld, for you to review."
    return f'<h2>Who has how many points</h2>{points}<p class="soft">{key}</p>'


def _flag(result: Result) -> str:
    return f' <span class="state withheld">{FLAG} review</span>' if result.withheld else ""


def table(found: ClassReport) -> str:
    """Return the results as CSV, one student a line, with a ' in front of what a spreadsheet would
    take for a formula.
    """
    names = [one.exercise.name for one in found.exercises]
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    mistakes = [f"{name}: mistake" for name in names]
    write(["id", "name", "points", "of", *names, *mistakes, "hints", "review", "remarks"])
    for result in found.results:
        by_name = {answer.exercise.split(".")[1]: answer for answer in result.answers}
        answers = [by_name.get(name) for name in names]
        row = [
            result.student,
            found.names.get(result.student, ""),
            f"{found.points_of(result):g}",
            sum(one.of for one in result.answers),
            *(one.state if one else "" for one in answers),
            *((one.mistake or "") if one else "" for one in answers),
            sum(history.get("hints", 0) for history in result.history.values()),
            "yes" if result.withheld else "",
            "; ".join([*result.withheld, *result.findings]),
        ]
        write([_harmless(value) if isinstance(value, str) else value for value in row])
    return text.getvalue()


def _harmless(value: str) -> str:
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else printable(value)


def _teach_next(found: ClassReport) -> Iterator[str]:
    yield "<h2>What to teach next</h2>"
    if not found.teach_next:
        yield (
            "<p>Nothing again: four in five solved every exercise, and no mistake was met by one "
            "in five. Go on.</p>"
        )
        return
    yield '<ol class="next">'
    for one in found.teach_next:
        yield f"<li><h3>{_title(one)}</h3><p>{one.solved} of {one.students} solved it.</p>"
        if one.mistakes:
            first = one.mistakes[0]
            text = f"<b>{inline_html(first.name)}</b>. {_sentence(first)}"
            yield f"<p>Most common mistake ({counted(first.students, 'student')}): {text}</p>"
        yield "</li>"
    yield f"</ol><p>The notebook is <code>notebooks/{found.chapter.stem}.ipynb</code>.</p>"


def _exercises(found: ClassReport) -> Iterator[str]:
    heads = ["exercise", "solved", "not yet", "not attempted", "no verdict", "had a hint shown"]
    heads += ["saw the solution", "checks, median"]
    rows = []
    for one in found.exercises:
        bar = (
            f'{one.solved} of {one.students}<span class="bar" aria-hidden="true"><i '
            f'style="width:{one.solved / one.students:.0%}"></i></span>'
        )
        numbers = [one.not_yet, one.not_attempted, one.no_verdict, one.hints, one.solution]
        checks = "unknown" if one.attempts is None else f"{one.attempts:g}"
        rows.append([_title(one), bar, *numbers, checks])
    yield "<h2>Exercise by exercise</h2>"
    yield _table("exercise by exercise", heads, rows, numbers=range(2, len(heads)))
    yield (
        '<p class="soft">Hints, solutions and checks are known of those who submitted the '
        "notebook with its outputs.</p>"
    )


def _mistakes(found: ClassReport, at_least: int) -> Iterator[str]:
    """Yield the table of the mistakes that at least so many students made."""
    met = [
        (mistake, one)
        for one in found.exercises
        for mistake in one.mistakes
        if mistake.students >= at_least
    ]
    yield f"<h2>Mistakes that {'were met' if at_least == 1 else 'more than one of you met'}</h2>"
    if not met:
        yield "<p>None of those that the checks can name.</p>"
        return
    rows = [
        [inline_html(mistake.name), mistake.students, _title(one), _sentence(mistake)]
        for mistake, one in sorted(met, key=lambda pair: -pair[0].students)
    ]
    heads = ["mistake", "students", "exercise", "what they were told"]
    yield _table("mistakes that were met", heads, rows, feedback=[3])


def _students(found: ClassReport) -> Iterator[str]:
    titles = [_title(one) for one in found.exercises]
    rows = []
    for result in found.results:
        by_id = {answer.exercise: answer for answer in result.answers}
        of = sum(answer.of for answer in result.answers)
        states = [_state(by_id.get(one.exercise.id)) for one in found.exercises]
        who = f"{_who(found, result)}{_flag(result)}"
        rows.append([who, f"{found.points_of(result):g} of {of}", *states])
    yield "<h2>Who solved what</h2>"
    yield _table("who solved what", ["student", "points", *titles], rows)
    if found.missing:
        names = ", ".join(html.escape(printable(name)) for name in found.missing)
        yield f"<p>Not submitted, of those in students.csv: {names}.</p>"
    remarks = [(result, line) for result in found.results for line in _remarks(result)]
    if remarks:
        yield "<h2>For you to look at</h2>"
    for result, line in remarks:
        yield f'<p class="note"><b>{_who(found, result)}</b>: {html.escape(printable(line))}</p>'


def _remarks(result: Result) -> list[str]:
    withheld = [f"no points, and for you to review: {why}." for why in result.withheld]
    unsafe = [] if result.sandboxed else ["it ran without a sandbox."]
    return [*withheld, *(f"{finding}." for finding in result.findings), *unsafe]


def _state(answer: Answer | None) -> str:
    if answer is None:
        return "–"
    shown = "withheld" if answer.state == "correct" and not answer.points else answer.state
    sign, word = _SIGNS.get(shown, ("–", shown))
    why = f'<br><span class="soft">{inline_html(answer.mistake)}</span>' if answer.mistake else ""
    return f'<span class="state {shown.replace(" ", "-")}">{sign} {html.escape(word)}</span>{why}'


def _who(found: ClassReport, result: Result) -> str:
    return html.escape(printable(found.names.get(result.student) or result.student))


def _title(one: ExerciseReport) -> str:
    return html.escape(f"{one.exercise.number}. {one.exercise.title}")


def _sentence(mistake: MistakeMet) -> str:
    text = f"{mistake.feedback[0].upper()}{mistake.feedback[1:]}"
    return inline_html(text if text.endswith((".", "?", "!")) else f"{text}.")


def _table(
    name: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Collection[int] = (1,),
    feedback: Collection[int] = (),
) -> str:
    """Return a table that scrolls sideways on a narrow screen, and that the keyboard can reach;
    the first cell of a row is its head.

    numbers, feedback: the columns of numbers, and of feedback
    """
    right = dict.fromkeys(numbers, ' class="number"')
    look = right | dict.fromkeys(feedback, ' class="feedback"')
    top = "".join(
        f'<th scope="col"{right.get(place, "")}>{head}</th>' for place, head in enumerate(heads)
    )
    body = ""
    for first, *cells in rows:
        body += f'<tr><th scope="row">{first}</th>'
        body += "".join(f"<td{look.get(n, '')}>{cell}</td>" for n, cell in enumerate(cells, 1))
        body += "</tr>"
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}"><table><thead><tr>{top}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _document(title: str, body: str, projected: bool) -> str:
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body{' class=projected' if projected else ''}><main>{body}</main></body></html>\n"
    )
