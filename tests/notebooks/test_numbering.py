"""Sections are numbered 1…n, and every "section n", "§ n" and "exercise n" that is written
somewhere exists.

A reference means its own chapter, that of the notebook or of the package's folder, unless a chapter
is named next to it. Papers have sections, too, which are cited with their authors or a version.
"""

import re
from functools import cache

import nbformat
import pytest

from amp_course.course import CHAPTERS
from amp_course.kit.paths import course_root
from tests.notebooks.test_prose import texts as prose

ROOT = course_root()
UNNUMBERED = {"Five lines to remember"}
WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
_N = rf"(?:\d\d?(?!\d|\.\d)|(?-i:{'|'.join(WORDS)})\b)"
REFERENCE = re.compile(
    r"(?:\bchapters? (?P<before>\d\d?)(?:'s|,| \()* ?|\b(?P<short>\d\d) (?=§))?"
    rf"(?:\b(?P<kind>section|exercise)s?|§+) ?(?P<first>{_N})(?P<rest>(?:(?:,| and| or| to|, "
    rf"and|–|-) ?{_N})*)"
    r"(?: (?:of|in) chapter (?P<after>\d\d?))?",
    re.IGNORECASE,
)
CHAPTER = re.compile(
    r"\bchapters? (?P<first>\d+)(?P<rest>(?:(?:,| and| or| to|, and|–|-) ?\d\d\b)*)", re.IGNORECASE
)
CITED = re.compile(r"\bet al\.|\bv\d\.\d|\barXiv:")
WORTH_PARSING = re.compile(rf"(?i:section|exercise|chapter)s?[\s\"]+({_N}|\d\d\d)|§|\"\d\d\.\d")
PATTERNS = (
    "notebooks/*.ipynb",
    "solutions/*.ipynb",
    "exercises/*.ipynb",
    "amp_course/**/*.py",
    "docs/**/*.md",
    "docs/**/*.html",
    "benchmarks/*.md",
    "*.md",
)


@cache
def headings(folder, number):
    """Numbered or not, the headings "## …" of a chapter's notebook, or of its solutions."""
    (path,) = ROOT.glob(f"{folder}/{number:02d}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


@cache
def sections(number):
    """The sections of a chapter: {1: "Four zones"}."""
    numbered = [one.split(". ", 1) for one in headings("notebooks", number)]
    return {int(one[0]): one[1] for one in numbered if one[0] not in UNNUMBERED}


@cache
def exercises(number):
    return {one.number: one.title for one in CHAPTERS[number].exercises()}


def numbers(first, rest):
    """All that a reference names: ("3", " to 6") → [3, 4, 5, 6]."""
    words = re.sub(r"\b(and|or|to)\b", "", f"{first} {rest}".lower())
    found = [
        WORDS.index(one) + 1 if one.isalpha() else int(one)
        for one in re.findall(r"\d+|[a-z]+", words)
    ]
    if re.fullmatch(r"( to|–|-) ?\w+", rest):
        return list(range(found[0], found[1] + 1))
    return found


def plain(text):
    """Text without line ends, and links by their words."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))


def written(path):
    """Yield (place, text) of all that a file says: its prose,
    and in notebooks code and what it printed.
    """
    if path.suffix == ".html":
        yield 1, path.read_text("utf-8")
        return
    yield from prose(path)
    if path.suffix == ".ipynb":
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                yield cell.id, cell.source
                for output in cell.outputs:
                    shown = output.get("data", {}).get("text/plain", "")
                    yield cell.id, output.get("text", "") + shown


def own_chapter(path):
    """The number of the chapter that a file belongs to; None for one that serves all."""
    for part in path.relative_to(ROOT).parts:
        for chapter in CHAPTERS:
            if part in (chapter.word, f"{chapter.stem}.ipynb", chapter.stem):
                return chapter.number
    return None


def references(path):
    """Yield (place, words around it, "section" or "exercise", chapter, number) of what a file
    refers to.
    """
    own = own_chapter(path)
    for place, text in written(path):
        text = plain(text)
        for match in REFERENCE.finditer(text):
            around = text[max(0, match.start() - 60) : match.end() + 60]
            kind = (match["kind"] or "section").lower()
            named = match["before"] or match["short"] or match["after"]
            if named is None and CITED.search(text[max(0, match.start() - 60) : match.start()]):
                continue
            for number in numbers(match["first"], match["rest"]):
                yield place, around, kind, own if named is None else int(named), number
        if path.suffix == ".py" and re.fullmatch(r"\d\d\.\d\d?", text):
            chapter, section = map(int, text.split("."))
            if chapter < len(CHAPTERS):
                yield place, text, "section", chapter, section  # where a fault is taught: "07.3"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_sections_are_numbered_from_1_on(chapter):
    numbered = [one for one in headings("notebooks", chapter.number) if one not in UNNUMBERED]
    assert [one.split(". ")[0] for one in numbered] == [str(n) for n in range(1, len(numbered) + 1)]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_solutions_are_headed_by_the_numbers_and_titles_of_their_exercises(chapter):
    expected = [f"{number}. {title}" for number, title in exercises(chapter.number).items()]
    assert [int(one.split(".")[0]) for one in expected] == list(range(1, len(expected) + 1))
    assert headings("solutions", chapter.number) == (expected if len(expected) > 1 else [])


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_an_exercise_s_file_says_which_one_it_is(chapter):
    for exercise in chapter.exercises():
        path = ROOT / "amp_course" / chapter.word / "exercises" / f"{exercise.name}.py"
        text = path.read_text("utf-8") if path.exists() else ""
        said = re.match(r'"""Exercise (\d+) of chapter (\d\d): ', text)
        wanted = exercise.number, chapter.number
        assert said is None or (int(said[1]), int(said[2])) == wanted, path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_reference_is_to_something_that_there_is(pattern):
    lost = []
    for path in sorted(ROOT.glob(pattern)):
        if not WORTH_PARSING.search(path.read_text("utf-8")):
            continue
        at = path.relative_to(ROOT)
        for place, around, kind, chapter, number in references(path):
            if chapter is None:
                lost.append(f"{at}:{place}: of which chapter? “{around}”")
            elif number not in (sections if kind == "section" else exercises)(chapter):
                lost.append(
                    f"{at}:{place}: chapter {chapter:02d} has no {kind} {number}: “{around}”"
                )
        for place, text in written(path):
            for match in CHAPTER.finditer(plain(text)):
                if max(numbers(match["first"], match["rest"])) >= len(CHAPTERS):
                    lost.append(f"{at}:{place}: there is no {match[0]}")
    assert not lost, "\n".join(lost)
