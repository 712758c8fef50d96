"""What chapter 06 says in prose and no cell of it shows or asserts."""

import gc
import weakref

import torch
from torch import nn

from amp_course.kit.data import digit_batches, digits


def test_autograd_keeps_the_cast_weights_past_the_region_until_backward_has_used_them():
    layer, copies = nn.Linear(8, 8, bias=False), []

    def note(tensor):
        if tensor.dtype is torch.bfloat16 and tensor.shape == layer.weight.shape:
            copies.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        loss = layer(layer(torch.ones(4, 8))).sum()
    gc.collect()
    assert copies and all(copy() is not None for copy in copies)
    loss.backward()
    gc.collect()
    assert all(copy() is None for copy in copies)


def test_batches_of_the_test_pictures_differ_in_size():
    assert len(digits().test_y) % 64 == 40 and len(digit_batches(digits(), 64, epochs=2)) == 44
