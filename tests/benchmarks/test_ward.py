"""The ward's list and its runner, on a repository that the test makes."""

import json
import subprocess
from pathlib import Path

import pytest

from amp_course.diagnosis.catalogue import catalogue
from benchmarks.ward import __main__ as ward
from benchmarks.ward import data, others, worth

TRAIN = """
import torch
from torchvision import datasets, transforms

torch.manual_seed(0)
images = datasets.MNIST("data", download=True, transform=transforms.ToTensor())
loader = torch.utils.data.DataLoader(images, batch_size=64)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""


@pytest.fixture
def clones(tmp_path):
    here = tmp_path / "some+one"
    (here / "example").mkdir(parents=True)
    (here / "example" / "train.py").write_text(TRAIN, "utf-8")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *command], cwd=here, check=True)
    return tmp_path


def test_the_list_names_what_there_is():
    for name, case in ward.cases().items():
        needed = {"kind", "repository"} | ({"own"} if "own" in case else {"commit", "script"})
        assert needed <= case.keys(), name
        assert case["kind"] in ("as written", "before", "after"), name
        assert set(case.get("faults", ())) | set(case.get("advice", {})) <= catalogue().keys(), name
        assert all(hasattr(data, maker) for maker in case.get("data", {})), name


@pytest.mark.slow
def test_a_script_is_examined_as_it_stands(clones, monkeypatch, tmp_path, capsys):
    plain = {
        "kind": "as written",
        "repository": "some/one",
        "commit": "HEAD",
        "script": "example/train.py",
        "steps": 10,
    }
    bug = plain | {
        "kind": "before",
        "faults": ["never-cleared"],
        "edits": [["    optimizer.zero_grad()\n", ""]],
    }
    cases = {"plain": plain, "bug": bug, "absent": plain | {"repository": "no/body"}}
    monkeypatch.setattr(ward, "cases", lambda: cases)
    assert ward.main([str(clones), "--out", str(tmp_path)]) == 0
    assert "absent" in capsys.readouterr().out
    (record,) = tmp_path.glob("ward-*.json")
    rows = json.loads(record.read_text("utf-8"))["scripts"]
    assert (rows["plain"]["faults"], list(rows["bug"]["faults"])) == ({}, ["never-cleared"])
    assert "10" in rows["plain"]["updates"] and rows["plain"]["cpu_seconds"] > 0
    monkeypatch.setattr(ward, "cases", lambda: {"bug": bug | {"faults": []}})
    assert ward.main([str(clones), "bug"]) == 1
    assert (clones / "some+one" / "example" / "train.py").read_text("utf-8") == TRAIN


def test_an_edit_that_does_not_fit_is_refused(clones, tmp_path):
    case = {
        "repository": "some/one",
        "commit": "HEAD",
        "script": "example/train.py",
        "edits": [["zero_grads()", ""]],
    }
    clone = ward.clone_of(case, clones)
    assert clone is not None and ward.clone_of(case | {"commit": "0" * 40}, clones) is None
    with pytest.raises(ValueError, match="has 0 times"):
        ward.prepare(case, clone, tmp_path)


def test_a_page_is_held_against_what_is_true():
    case = {"faults": ["never-cleared"], "advice": {"softmax-twice": "untrue: it is a mixture"}}
    judged = ward.judge(
        case, {"state": "fault", "faults": {"diverges": ""}, "advice": {"little-headroom": ""}}
    )
    assert (judged["false"], judged["missed"]) == (["diverges"], ["never-cleared"])
    assert (judged["advice not judged"], judged["advice untrue"]) == (
        ["little-headroom"],
        ["softmax-twice"],
    )


@pytest.mark.parametrize("maker", ["tokens", "words", "names", "citations", "pictures"])
def test_made_data_is_small(maker, tmp_path: Path):
    getattr(data, maker)(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and sum(path.stat().st_size for path in files) < 1_000_000


def test_the_texts_have_the_numbers_of_the_newest_record():
    newest = max(ward.RESULTS.glob("ward-*.json"))
    record = json.loads(newest.read_text("utf-8"))
    summary, rows = record["summary"], record["scripts"]
    page = (ward.RESULTS.parents[1] / "docs" / "tools.md").read_text("utf-8")
    for text in ward.told(record):
        assert text in page, text
    assert summary == json.loads(json.dumps(ward.summed_up(rows)))
    assert (ward.RESULTS / "ward.md").read_text("utf-8") == ward.table(record)
    readme = (ward.RESULTS.parents[1] / "README.md").read_text("utf-8")
    assert f"held against {summary['kinds']['as written']} public scripts" in readme


def test_the_other_tools_numbers_are_those_of_the_newest_record():
    newest = (max(ward.RESULTS.glob(pattern)) for pattern in ("ward_others-*.json", "ward-*.json"))
    record, ours = (json.loads(path.read_text("utf-8")) for path in newest)
    page = (ward.RESULTS.parents[1] / "docs" / "tools.md").read_text("utf-8")
    for text in worth.told(record, ours):
        assert text in page, text
    assert (ward.RESULTS / "ward_others.md").read_text("utf-8") == worth.table(record)
    said = [worth.judge(row, worth.judgement()) for row in record["rows"] if row["tool"] != "none"]
    assert not any("not judged" in one.values() for one in said)
    assert {row["case"] for row in record["rows"]} <= ward.cases().keys()
    assert worth.judgement()["names"].keys() <= {
        row["case"] for row in record["rows"] if row["kind"] == "before"
    }


@pytest.mark.slow
def test_a_script_runs_with_hooks_in_front_of_it(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(2, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "while True:\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(4, 2)).sum().backward()\n"
        "    optimizer.step()\n",
        "utf-8",
    )
    case = {"script": "train.py", "steps": 5}
    row = others.attach(case, tmp_path, "none", tmp_path)
    assert (row["updates"], row["model"], row["optimizer"]) == (
        5,
        "Sequential",
        "SGD",
    ) and "raised" not in row
