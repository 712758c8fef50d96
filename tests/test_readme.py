"""The README and the pages of docs/: links lead somewhere, commands exist,
counts and badges are true, and it stays short.
"""

import importlib.util
import re
from pathlib import Path

import pytest

from amp_course.cli_parser import make_parser
from amp_course.course import CHAPTERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {page: page.read_text("utf-8") for page in PAGES}
README = TEXT[ROOT / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", TEXT[page]) + re.findall(
        r'(?:src|srcset|href)="([^"]+)"', TEXT[page]
    )
    inside = [link.split("#")[0] for link in links if not re.match(r"https?:|#|\.\./\.\./", link)]
    assert [link for link in inside if not (page.parent / link).exists()] == []
    # On the code host `../../` is the repository's own address: its actions and its deployments.
    outside = {link for link in links if link.startswith("../../")}
    assert outside <= {
        "../../actions/workflows/ci.yml/badge.svg",
        "../../actions/workflows/ci.yml",
        "../../deployments/github-pages",
    }
    assert (ROOT / ".github" / "workflows" / "ci.yml").is_file() and (
        ROOT / ".github" / "workflows" / "book.yml"
    ).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_picture_has_words(page: Path) -> None:
    assert re.findall(r"!\[\]\(", TEXT[page]) == []
    assert all('alt="' in tag for tag in re.findall(r"<img[^>]*>", TEXT[page]))


def test_a_diagnosed_answer_and_a_page_of_the_doctor_come_before_any_explanation() -> None:
    first = README[: README.index("## Start")]
    assert "docs/images/answer.png" in first and "docs/images/doctor.png" in first


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    )
    named = set(re.findall(r"`make ([a-z-]+)", TEXT[page])) | set(
        re.findall(r"(?:^|&& )make ([a-z-]+)", TEXT[page], re.MULTILINE)
    )
    assert named <= targets
    commands = next(action.choices for action in make_parser()._actions if action.dest == "command")
    assert commands is not None
    assert set(re.findall(r"amp-course ([a-z]+)", TEXT[page])) <= set(commands)


def test_counts_are_true() -> None:
    exercises = sum(len(chapter.exercises()) for chapter in CHAPTERS)
    assert f"## Thirteen chapters, {exercises} exercises" in README and len(CHAPTERS) == 13
    for chapter in CHAPTERS:
        assert (
            f"| {chapter.number:02d} | [{chapter.word}](notebooks/{chapter.stem}.ipynb) | "
            f"{chapter.question} |" in README
        )


def test_badges_are_true() -> None:
    spec = importlib.util.spec_from_file_location("badges", ROOT / "tools" / "badges.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, svg in module.badges().items():
        assert (ROOT / "docs" / "images" / name).read_text("utf-8") == svg, (
            "run python tools/badges.py"
        )
        assert name in README


def test_it_takes_a_minute() -> None:
    assert len(README.split()) < 900  # the alt texts of its pictures count, too
