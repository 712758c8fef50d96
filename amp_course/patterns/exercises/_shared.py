"""What several exercises of the chapter share: dtypes, messages, the steps of two optimizers."""

from typing import Any

from torch import nn

from amp_course.watching.observer import Observer
from amp_course.watching.records import Training, Update

REGION_MESSAGES = {
    "the dtype that the first layer computes in": "the dtype that the first layer computes in is "
    "{got}. Run the model in an fp16 autocast region, and name its dtype, `torch.float16`, which "
    "is not the default on every device",
    "the dtype that the loss is computed in": "the dtype that the loss is computed in is {got}. "
    "Call `loss_fn` inside the region, where autocast computes it in float32",
}


def observe(models: list[nn.Module], optimizers: list[Any], scaler: Any) -> Observer:
    """Return an observer of a training step."""
    return Observer(Training(lambda: None, models, optimizers, [scaler], []))


def both_steps(update: Update) -> dict[str, Any]:
    """Return the outputs for the steps of two optimizers."""
    first, second = (
        [step.gradient.values.clone() for step in update.steps(place)] for place in (0, 1)
    )
    return {
        "the number of steps of the two optimizers": [len(first), len(second)],
        "the gradient at the first optimizer's step": first,
        "the gradient at the second optimizer's step": second,
    }
