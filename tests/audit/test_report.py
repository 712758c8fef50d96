"""The report: what is in it, in which order, as text, HTML and JSON; where it sends the reader."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from amp_course.audit import FAULTS, Audit, audit
from amp_course.diagnosis.findings import finding, ordered
from amp_course.diagnosis.step_faults import BEHAVIOURS
from tests.audit.cases import BROKEN, audited
from tests.audit.scenes import RIGHT, Scene


def test_a_line_of_code_is_one() -> None:
    for name, fault in FAULTS.items():
        assert fault.behaviour in BEHAVIOURS
        if fault.code:
            code = fault.code.replace("…", "...")
            compile(code + ("\n    pass" if code.endswith(":") else ""), name, "exec")


def test_faults_come_in_order_of_harm_and_once() -> None:
    names = ["scheduler-ran-on", "sum-not-mean", "overflow-not-skipped", "sum-not-mean"]
    assert [one.name for one in ordered(map(finding, names))] == [
        "overflow-not-skipped",
        "sum-not-mean",
        "scheduler-ran-on",
    ]


def test_json_says_what_the_text_says() -> None:
    case = next(case for case in BROKEN if case.faults == ("clipped-while-scaled",))
    report = audited(case)
    plain = json.loads(report.to_json())
    assert [one["name"] for one in plain["faults"]] == list(report.names)
    fault = plain["faults"][0]
    assert fault["code"] == "scaler.unscale_(optimizer)" and fault["section"] == "07.3" and fault["evidence"]
    assert set(plain["right"]) == set(report.right) and all(plain["right"].values())
    for words in (fault["cause"], fault["cure"], "chapter 07, section 3", *plain["right"]):
        assert words in repr(report)
    assert "<code>scaler.unscale_(optimizer)</code>" in report._repr_html_()


def test_what_is_wrong_is_never_called_right() -> None:
    for name, fault in FAULTS.items():
        report = Audit((finding(name),), tuple(BEHAVIOURS))
        assert not {fault.behaviour, *fault.spoils} & set(report.right)
        assert set(fault.spoils) <= set(BEHAVIOURS)
    assert "gradient" not in Audit((finding("sum-not-mean"),), tuple(BEHAVIOURS)).right


def test_an_audit_that_judged_nothing_is_not_true() -> None:
    scene = Scene()

    def hangs(x: torch.Tensor, y: torch.Tensor) -> None:
        while True:
            pass

    report = audit(hangs, **scene.objects, seconds=0.2)
    assert not report.names and "0.2 seconds" in dict(report.not_checked)["everything else"]
    assert set(report.right) <= {"objects"}
    assert not Audit((), ())


def test_what_cannot_be_put_back_is_named(tmp_path: Path) -> None:
    scene = Scene()
    inner, epochs, log = RIGHT["plain"](scene), (n * n for n in range(10**9)), open(tmp_path / "log", "w")  # noqa: SIM115

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        next(epochs)
        log.write("a line\n")
        inner(x, y)

    report = audit(step, **scene.objects)
    log.close()
    assert report and set(dict(report.not_put_back)) == {"epochs", "log"}
    assert "not put back: epochs is an iterator (generator)" in repr(report)
    assert "Not put back: 2" in report._repr_html_()


def test_an_iterator_of_batches_is_not_read_further_than_needed() -> None:
    scene = Scene()
    read = []

    def batches():
        while True:
            read.append(1)
            yield scene.batches[len(read) % 4]

    report = audit(RIGHT["plain"](scene), **{**scene.objects, "batches": batches()})
    assert not report.names and len(read) <= 4
    assert "batches" in dict(report.not_put_back)


def test_a_fault_of_two_optimizers_names_both() -> None:
    one, other = Scene(), Scene()

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        for scene in (one, other):
            one.scaler.scale(scene.loss(x, y)).backward()
            scene.optimizer.step()
            scene.optimizer.zero_grad()

    objects = one.objects | {
        "loss": None,
        "model": [one.model, other.model],
        "optimizer": [one.optimizer, other.optimizer],
    }
    (found,) = audit(step, **objects).findings
    assert found.name == "still-scaled" and found.evidence["optimizer"] == "0 and 1"
