"""An average of the weights."""

import copy

import torch


class EMAModel:
    """Follows a model, more slowly from step to step."""

    def __init__(self, model, max_value=0.9999, **options):
        self.averaged_model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.most, self.steps = 0.0, max_value, 0

    @torch.no_grad()
    def step(self, model):
        self.steps += 1
        self.decay = min(self.most, 1 - (1 + self.steps) ** -0.75)
        for average, weight in zip(
            self.averaged_model.parameters(), model.parameters(), strict=True
        ):
            average.lerp_(weight.to(average), 1 - self.decay)
