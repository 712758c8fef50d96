"""The scene on which exercises run a learner's step: its outputs are what torch computes."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.functional import cross_entropy

from amp_course.checking.judging import Failed, call_answer
from amp_course.watching.scene import Scene, flat


def step(scene: Scene, number: int) -> None:
    inputs, targets = scene.batches[number]
    with torch.autocast("cpu", dtype=torch.float16):
        loss = scene.loss_fn(scene.model(inputs), targets)
    scene.scaler.scale(loss).backward()
    scene.scaler.step(scene.optimizer)
    scene.scaler.update()


def test_the_outputs_are_what_a_step_did() -> None:
    scene = Scene(random.Random(1), 2, overflow_at=(1,), scaler={"init_scale": 256.0})
    inputs, targets = scene.batches[0]
    before = scene.weights()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = cross_entropy(scene.model(inputs), targets)
    want = flat(torch.autograd.grad(loss * 256, list(scene.model.parameters()))) / 256
    with scene.watch() as update:
        step(scene, 0)
    outputs = scene.outputs(update)
    assert outputs["the dtype of the weights"] == "float32"
    assert outputs["the dtype that the first layer computes in"] == "float16"
    assert outputs["the dtype that the loss is computed in"] == "float32"
    assert outputs["the number of backward passes inside the autocast region"] == 0
    assert outputs["the number of optimizer steps"] == 1
    torch.testing.assert_close(outputs["the gradient at the step"], [want])
    torch.testing.assert_close(outputs["the weights after the step"], before - 0.1 * want)
    assert outputs["the loss scale after the step"] == 256.0
    before = scene.weights()
    with scene.watch() as update:
        step(scene, 1)  # overflows
    outputs = scene.outputs(update)
    assert outputs["the number of optimizer steps"] == 0
    assert outputs["the loss scale after the step"] == 128.0
    assert torch.equal(outputs["the weights after the step"], before)


def test_an_exception_carries_the_evidence_of_its_step() -> None:
    scene = Scene(random.Random(1), 1, scaler={})

    def raises() -> None:
        step(scene, 0)
        raise KeyError("late")

    with pytest.raises(Failed) as caught, scene.watch():
        call_answer(raises, "at step 1")
    assert str(caught.value) == "at step 1" and len(caught.value.evidence["arrived"]) == 1
