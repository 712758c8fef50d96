"""`amp-course bench --compare`: two pages, compared without measuring."""

import json
import re
from dataclasses import replace

import pytest

from amp_course import cli
from amp_course.kit.errors import CourseError
from amp_course.speed.bench.compare import compare, compare_files
from tests.speed.bench_pages import GPU, MIXED, page


@pytest.fixture
def two(tmp_path):
    """Two machines' files."""
    paths = tmp_path / "gpu.json", tmp_path / "laptop.json"
    for path, found in zip(paths, (GPU, MIXED), strict=True):
        path.write_text(json.dumps(found.to_dict()))
    return paths


def test_two_pages_are_compared_without_measuring(two, capsys):
    assert cli.main(["bench", "--compare", *map(str, two)]) == 0
    out = capsys.readouterr().out
    assert "device  A: cuda: a cuda\n        B: cpu: a cpu" in out and "The same in both:" in out
    assert "torch: 2.13.0" in out
    assert re.search(r"bf16 matmul, best rate, GFLOP/s +800 +600 +0\.75", out)
    assert re.search(r"launching one op, µs +4 +1 +4\n", out)
    assert re.search(r"SimpleNet, AMP bf16\n  speed-up over fp32 +2\.40 +1\.90\n  quartiles", out)
    assert out.count("Train in AMP bf16") == 2 and max(map(len, out.splitlines())) <= 100


def test_steps_of_other_sizes_are_not_compared():
    larger = (replace(one, title=f"{one.title}, larger") for one in GPU.results)
    for gpu, same in ((GPU, True), (replace(GPU, results=tuple(larger)), False)):
        text = compare(gpu, MIXED)
        assert ("fp32 step" in text) == same == ("no step times are given" not in text)


def test_pages_with_little_in_common_are_compared_as_far_as_it_goes():
    nothing = replace(page(complete=False), measured=None)
    text = compare(GPU, nothing)
    assert "No training was timed under the same recipe on both." in text
    assert "INCOMPLETE" in text and "best rate" not in text


@pytest.mark.parametrize(
    "content, meant",
    [
        (None, "could not be read: "),
        ("", "is not JSON: give the .json file that `amp-course bench` wrote."),
        (b"\x89PNG\xff", "is not JSON"),
        ("[1]", "is JSON, but not from `amp-course bench`"),
        ({"benchmark": "peers"}, "is JSON, but not from `amp-course bench`"),
        ({"schema": 0}, "has schema 0, and this version of the course reads schema 1: make it"),
        ({"schema": 2}, "reads schema 1: run `amp-course update`"),
        ({"results": [{}]}, "is damaged or was edited ('workload' is missing)"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_not_a_page_is_one_line(two, capsys, content, meant):
    good, bad = two
    if content is None:
        bad.unlink()
    elif isinstance(content, dict):
        bad.write_text(json.dumps(MIXED.to_dict() | content))
    else:
        bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.main(["bench", "--compare", str(good), str(bad)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"amp-course: {bad} ") and meant in line


def test_one_file_twice_is_refused(two, tmp_path):
    (tmp_path / "link.json").symlink_to(two[0])
    with pytest.raises(CourseError, match="are the same file: give two"):
        compare_files(two[0], tmp_path / "link.json")
