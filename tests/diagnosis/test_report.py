"""The report on hand-written findings: its verdict, and the same contents in text, HTML, JSON."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from amp_course.diagnosis.catalogue import BEHAVIOURS, catalogue, finding
from amp_course.diagnosis.findings import finding_of
from amp_course.diagnosis.report import Report, count, listed

FULL = Report(
    (
        finding("masked-row", step=3, op="`softmax` <b>", place="net.py:12"),
        finding("never-cleared", norm=3.25),
    ),
    ("values", "clearing", "steps"),
    (("overflow", "there is no scaler"),),
    ("The first loss is 0.",),
    (("batches", "is an iterator"),),
    subject="t.py <b>",
    consequences=(finding("scale-keeps-falling", skipped="5 of 6"), finding("kept-after-skip")),
    advice=(finding("host-waits"),),
    facts=(("arguments", "--epochs 1"), ("updates", "7")),
    output=("INFO ready", " 20%|##", "last"),
    device="xpu",
)


def words(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", " ", html))


def test_as_text() -> None:
    text = str(FULL)
    assert text.startswith("2 faults found in t.py <b>\n")
    assert max(map(len, text.splitlines())) <= 100
    at = 0
    for part in (
        "\n1. masked-row: every attention score",
        "\n   Where: net.py:12\n   Fix: Leave",
        "Measured: step: 3",
        "Follows from it: scale-keeps-falling (skipped: 5 of 6)",
        "\n2. never-cleared",
        "Follows from it: kept-after-skip",
        "Advice (not counted as faults):\n-  host-waits",
        "Checked, and right:\n   steps\n",
        "Observed, no fault:\n   The first loss",
        "Not judged:\n   overflow: there is no scaler",
        "Not put back:\n   batches is an iterator",
        "   | INFO ready\n   |  20%|##\n   | last",
    ):
        at = text.index(part, at)


def test_html_says_what_the_text_says() -> None:
    page = FULL.to_html()
    assert page.startswith("<!doctype html>") and "t.py &lt;b&gt;" in page
    assert "<code>softmax</code> &lt;b&gt;" in page
    text = words(page)
    found = (*FULL.findings, *FULL.advice)
    plain = [part.split("`")[0] for one in found for part in (one.name, one.cause, one.fix)]
    shown = [str(part) for one in found for part in (*one.evidence, one.place)]
    rest = ["Follows from it: kept-after-skip", "--epochs 1", "The first loss is 0.", "20%|##"]
    for what in (*plain, *shown, *rest, "there is no scaler"):
        assert what in text
    assert "2 faults found" in words(FULL._repr_html_())


def test_json_says_what_the_text_says() -> None:
    data = json.loads(FULL.to_json())
    assert tuple(map(finding_of, data["faults"])) == FULL.findings
    assert tuple(map(finding_of, data["consequences"])) == FULL.consequences
    wanted = {
        "state": "fault",
        "subject": "t.py <b>",
        "seen": {"arguments": "--epochs 1", "updates": "7"},
        "right": {"steps": BEHAVIOURS["steps"]},
        "not put back": {"batches": "is an iterator"},
        "not judged": [{"what": "overflow", "because": "there is no scaler"}],
        "output": ["INFO ready", " 20%|##", "last"],
    }
    assert data.items() >= wanted.items()


def test_a_fix_names_the_device_of_the_training() -> None:
    one = finding("beyond-fp16")
    assert 'device_type="xpu", enabled=False' in str(Report((one,), device="xpu"))
    assert 'device_type="cuda", enabled=False' in str(Report((one,)))


CLEAN = Report((), ("steps",))


@pytest.mark.parametrize(
    ("report", "state", "code", "words"),
    [
        (CLEAN, "clean", 0, "No fault found in the step"),
        (Report((finding("diverges"),), ("steps",)), "fault", 1, "1 fault found in the step"),
        (Report((finding("diverges"),), problem="x"), "fault", 1, "1 fault found"),
        (Report(problem="No GPU."), "could not run", 2, "The step could not be examined"),
        (Report((), ("steps",), too_little="1."), "too little seen", 2, "Too little was seen"),
        (Report(), "not judged", 2, "The step was not judged"),
        (Report((), ("steps",), (("steps", "no time"),)), "not judged", 2, "not judged"),
        (Report((), ("steps",), (("everything else", "no time"),)), "not judged", 2, "not judged"),
        (Report((), ("steps",), advice=(finding("host-waits"),)), "clean", 0, "No fault found"),
    ],
)
def test_the_verdict(report: Report, state: str, code: int, words: str) -> None:
    assert (report.state, report.exit_code, bool(report)) == (state, code, state == "clean")
    assert words in report.head
    assert report.head in str(report) and report.head in report._repr_html_()
    assert report.problem in str(report) and report.too_little in report._repr_html_()


def test_what_is_wrong_is_never_called_right() -> None:
    for name, fault in catalogue().items():
        report = Report((finding(name),), tuple(BEHAVIOURS))
        assert not {fault.of, *fault.hides} & {*report.right}
    wrong = {*BEHAVIOURS} - {*Report((finding("sum-not-mean"),), tuple(BEHAVIOURS)).right}
    assert wrong == {"accumulation", "gradient", "shorter last group", "unequal micro-batches"}
    assert not Report((finding("run-differs"),), ("weights", "run")).right
    assert not Report((finding("overflow-not-skipped"),), ("values",)).right


def test_a_consequence_is_not_counted_and_what_it_is_of_is_not_right() -> None:
    found = map(finding, ("nan-in-data", "weights-not-finite", "scale-keeps-falling", "host-waits"))
    report = Report(tuple(found), ("objects", "values", "weights", "steps"))
    assert report.names == ("nan-in-data", "host-waits") and report.right == ("steps",)
    below = [one.name for one in report.following(report.findings[0])]
    assert below == ["weights-not-finite", "scale-keeps-falling"]
    assert Report((finding("weights-not-finite"),)).names == ("weights-not-finite",)


def test_counts_and_lists() -> None:
    assert [count(1, "update"), count(2000, "update")] == ["1 update", "2,000 updates"]
    assert [*map(listed, ("", "a", "ab", "abc"))] == ["", "a", "a and b", "a, b and c"]
