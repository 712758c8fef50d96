"""What an audit's report says of the step and its batches. The report itself is tested in tests/diagnosis."""

from __future__ import annotations

import torch

from amp_course.audit import audit
from tests.audit.scenes import RIGHT, Scene


def test_an_audit_that_judged_nothing_is_not_true() -> None:
    scene = Scene()

    def hangs(x: torch.Tensor, y: torch.Tensor) -> None:
        while True:
            pass

    report = audit(hangs, **scene.objects, seconds=0.2)
    assert not report.names and "0.2 seconds" in dict(report.not_checked)["everything else"]
    assert set(report.right) <= {"objects"}


def test_what_cannot_be_put_back_is_named() -> None:
    scene = Scene()
    inner, epochs = RIGHT["plain"](scene), (n * n for n in range(10**9))

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        next(epochs)
        inner(x, y)

    report = audit(step, **scene.objects)
    assert report and set(dict(report.not_put_back)) == {"epochs"}
    assert "epochs is an iterator (generator)" in repr(report)
    assert "Not put back" in report._repr_html_()


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
