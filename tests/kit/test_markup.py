"""Messages as HTML: what a Markdown library makes of them,
where they use no more than code and bold.
"""

import mistune  # nbconvert's, and so JupyterLab's
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_course.kit.markup import inline_html

LIBRARY = mistune.create_markdown(escape=True)
WORDS = st.text("ab <>&x1.", min_size=1).filter(lambda text: text == text.strip())
PARTS = st.one_of(
    WORDS, WORDS.map("`{}`".format), st.from_regex(r"[a-z1]+", fullmatch=True).map("**{}**".format)
)


def by_library(text):
    """Return the inside of the paragraph that it makes;
    a word first, so that no list or quotation begins.
    """
    page = LIBRARY(f"word {text}")
    return page.removeprefix("<p>word").removesuffix("</p>\n").strip().replace("strong>", "b>")


@settings(max_examples=40)
@given(st.lists(PARTS, max_size=6).map(" ".join))
def test_equals_a_markdown_library_on_code_and_bold(text):
    assert inline_html(text) == by_library(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("`**kwargs` and `__init__`", "<code>**kwargs</code> and <code>__init__</code>"),
        ("2 ** 3 ** 4", "2 ** 3 ** 4"),
        ("it **grew**, and **fell again**", "it <b>grew</b>, and <b>fell again</b>"),
        ("one ` alone", "one ` alone"),
        ("a_b_c * d", "a_b_c * d"),
        ("<b>\"'", "&lt;b&gt;\"'"),
    ],
)
def test_what_is_not_markdown_stays(text, wanted):
    assert inline_html(text) == wanted
