"""Record the gradients of the course's GPT for the chapter's panel and experiments."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from amp_course.kit.data import CharText, documentation_text, text_batches
from amp_course.kit.models import CharGPT
from amp_course.underflow.record import GradientRecorder


def record_gpt(steps: int = 5) -> GradientRecorder:
    """Train the character GPT in fp32 for `steps` steps; record the gradients of one more.

    The recording's `outputs` are what flows between the layers, its `weights` what the optimizer
    gets; neither is scaled. The global random stream is left unchanged.
    """
    text = CharText(documentation_text())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CharGPT.for_device("cpu", vocab_size=len(text.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    *training, (last_x, last_y) = text_batches(text, 8, model.context, steps=steps + 1, seed=0)
    for x, y in training:
        optimizer.zero_grad()
        cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
    with GradientRecorder(model) as recorder:
        cross_entropy(model(last_x).flatten(0, -2), last_y.flatten()).backward()
    return recorder
