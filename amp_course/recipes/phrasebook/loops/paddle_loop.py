"""The loop in Paddle 3.3. On a CPU its AMP warns and switches itself off, region,
scaler and `decorate` alike.
"""

from collections.abc import Iterable

import paddle
from paddle import Tensor, nn

DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def train(
    model: nn.Layer, batches: Iterable[tuple[Tensor, Tensor]], precision: str, level: str = "O1"
) -> list[float]:
    """Train with SGD; return the loss of every step. precision: "fp32", "bf16" or "fp16"; level:
    "O1" or "O2".
    """
    low, dtype = precision != "fp32", DTYPES.get(precision, "float16")
    # the optimizer clips, after the scaler has unscaled
    clip = nn.ClipGradByGlobalNorm(clip_norm=1.0)
    optimizer = paddle.optimizer.SGD(
        learning_rate=0.5, parameters=model.parameters(), grad_clip=clip
    )
    if low and level == "O2":
        model, optimizer = paddle.amp.decorate(
            models=model, optimizers=optimizer, level="O2", dtype=dtype
        )
    scaler = paddle.amp.GradScaler(enable=precision == "fp16", init_loss_scaling=2.0**16)
    losses = []
    for inputs, targets in batches:
        with paddle.amp.auto_cast(enable=low, level=level, dtype=dtype):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        losses.append(loss.item())
    return losses
