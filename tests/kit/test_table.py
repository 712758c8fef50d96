from amp_course.kit.table import html_table, text_table

ROWS = [["name", "n"], ["a<b", "10"], ["c", "2"]]


def test_text_stands_in_columns_without_trailing_blanks():
    assert text_table(ROWS) == "name  n\na<b   10\nc     2"


def test_numbers_stand_at_the_right():
    assert text_table(ROWS, right={"n"}) == "name   n\na<b   10\nc      2"


def test_html_escapes_and_has_one_head():
    page = html_table(ROWS)
    assert page.count("<th ") == 2 and page.count("<td ") == 4
    assert "a&lt;b" in page and "a<b" not in page
