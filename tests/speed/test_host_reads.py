"""Every way of asking for a tensor's value is noted; what stays on the device is not."""

import math

import numpy as np
import pytest
import torch

from amp_course.speed.exercises.host_reads import HostReads, Read

LOSS, PAIR = torch.tensor(1.5), torch.tensor([1.0, 2.0])
READS = {
    "item": (lambda: LOSS.item(), ["value"]),
    "float": (lambda: float(LOSS), ["value"]),
    "int, as an index": (lambda: "abc"[torch.tensor(1)], ["value"]),
    "math": (lambda: math.isfinite(LOSS), ["value"]),
    "a list": (lambda: PAIR.tolist(), ["value"]),
    "NumPy": (lambda: np.asarray(PAIR), ["value"]),
    "a new tensor of two": (lambda: torch.tensor([LOSS, LOSS]), ["value", "value"]),
    "if": (lambda: 1 if LOSS > 1 else 0, ["condition"]),
    "max of Python": (lambda: max(LOSS, 0.0), ["condition"]),
    "equal": (lambda: torch.equal(PAIR, PAIR), ["condition"]),
    "a format": (lambda: f"{LOSS:.2f}", ["text"]),
    "a print": (lambda: str(PAIR), ["text"]),
    "a mask": (lambda: PAIR[PAIR > 1], ["shape"]),
    "nonzero": (lambda: PAIR.nonzero(), ["shape"]),
    "where with a condition alone": (lambda: torch.where(PAIR > 1), ["shape"]),
    "a copy to the host, once": (lambda: [one.item() for one in PAIR.cpu()], ["value"]),
    "NumPy, of several": (lambda: np.array([LOSS, LOSS]), ["value", "value"]),
    "by name and number": (lambda: LOSS.to("cpu:0"), ["value"]),
    "by type": (lambda: LOSS.type(torch.DoubleTensor), ["value"]),
    "by name, once": (lambda: (PAIR.to("cpu") * 2).sum().item(), ["value"]),
}
KEEPS = {
    "arithmetic": lambda: (LOSS * 2 + PAIR).sum().detach(),
    "another dtype": lambda: (LOSS.type(torch.float64), LOSS.to(torch.bfloat16)),
    "where": lambda: torch.where(LOSS.isfinite(), LOSS, 0.0),
    "stack": lambda: torch.stack([LOSS, LOSS]),
    "a slice, an element": lambda: (PAIR[1:], PAIR[0], PAIR[torch.tensor([1])]),
    "to where it is": lambda: LOSS.to(PAIR.device),
    "a copy that nobody waits for": lambda: LOSS.to("cpu", non_blocking=True),
    "its size": lambda: (len(PAIR), PAIR.shape, PAIR.dim()),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_is_noted(name):
    body, kinds = READS[name]
    with HostReads(lambda: 7) as host:
        body()
    assert [read.kind for read in host.reads] == kinds
    assert all(read.place == 7 for read in host.reads)


@pytest.mark.parametrize("name", KEEPS)
def test_what_stays_on_the_device_is_no_read(name):
    with HostReads() as host:
        KEEPS[name]()
    assert host.reads == []


def test_the_call_is_named_and_the_tensor_unchanged():
    loss = torch.tensor(2.0, requires_grad=True)
    with HostReads() as host:
        copy = loss.cpu()
        assert loss.item() == 2.0
    assert host.reads == [Read("cpu", "value", 0), Read("item", "value", 0)]
    copy.backward()
    assert loss.grad == 1.0
