"""Sound steps, some of which use inf on purpose or have one that does no harm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.planted_nonfinite.steps import INF, Setup, training


def _causal(size: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def attention_with_a_mask() -> Setup:
    def function(x: Tensor) -> Tensor:
        scores = (x @ x.T).masked_fill(_causal(4), -INF)
        return scores.softmax(-1) @ x

    return training(function)


def attention_with_an_added_mask() -> Setup:
    mask = torch.full((4, 4), -INF).triu(1)

    def function(x: Tensor) -> Tensor:
        return (x @ x.T + mask).softmax(-1) @ x

    return training(function)


def torchs_own_attention() -> Setup:
    def function(x: Tensor) -> Tensor:
        one = x[None]
        return F.scaled_dot_product_attention(one, one, one, is_causal=True)[0]

    return training(function)


def torchs_attention_module() -> Setup:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            one = x[None]
            return self.attention(one, one, one, attn_mask=_causal(4))[0][0]

    return training(body=Attending())


def a_label_that_is_never_picked() -> Setup:
    def loss(output: Tensor) -> Tensor:
        output = output.masked_fill(torch.tensor([False, False, True]), -INF)
        return F.cross_entropy(output, torch.tensor([0, 1, 0, 1]))

    return training(loss=loss)


def the_best_two_alone() -> Setup:
    def function(x: Tensor) -> Tensor:
        least = x.topk(2).values[:, -1:]
        return torch.where(x < least, torch.full_like(x, -INF), x).softmax(-1)

    return training(function)


def log_of_zero_that_exp_takes_back() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x + x.detach().relu().log().exp()

    return training(function)


def an_inf_that_a_clamp_takes_back() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x + (1 / x.detach().relu()).clamp(max=10.0)

    return training(function)


def pooling_with_padding() -> Setup:
    def function(x: Tensor) -> Tensor:
        return F.max_pool1d(x[:, None], 3, stride=1, padding=1)[:, 0]

    return training(function)


def a_running_minimum() -> Setup:
    best = torch.tensor(INF)

    def loss(output: Tensor) -> Tensor:
        value = output.square().mean()
        best.copy_(torch.minimum(best, value.detach()))
        return value

    return training(loss=loss)


def a_scaler_that_warms_up() -> Setup:
    return training(dtype=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**30))


def a_scaler_and_clipping() -> Setup:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    setup = training(dtype=torch.float16, scaler=scaler)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            value = setup.model(torch.ones(4, 8)).float().square().mean()
        scaler.scale(value).backward()
        scaler.unscale_(setup.optimizer)
        nn.utils.clip_grad_norm_(setup.model.parameters(), 1.0)
        scaler.step(setup.optimizer)
        scaler.update()
        setup.optimizer.zero_grad()

    return Setup(step, setup.model, setup.optimizer, scaler)


def plain() -> Setup:
    return training()


SOUND = (
    attention_with_a_mask,
    attention_with_an_added_mask,
    torchs_own_attention,
    torchs_attention_module,
    a_label_that_is_never_picked,
    the_best_two_alone,
    log_of_zero_that_exp_takes_back,
    an_inf_that_a_clamp_takes_back,
    pooling_with_padding,
    a_running_minimum,
    a_scaler_that_warms_up,
    a_scaler_and_clipping,
    plain,
)
