"""The six exercises of chapter 04; `ALL` lists them in order. How they are judged is in `judges/`."""

from __future__ import annotations

from amp_course.autocast.judges import functions, mini, predicting, regions, sigmoid
from amp_course.autocast.judges.casts import FP32_OPS, LOWER_OPS, WIDEST_OPS
from amp_course.autocast.judges.predicting import TWELVE
from amp_course.checking import Exercise

__all__ = ["ALL", "FP32_OPS", "LOWER_OPS", "TWELVE", "WIDEST_OPS"]

predict_dtypes = Exercise(
    chapter="autocast",
    name="predict_dtypes",
    number=1,
    title="Predict twelve results",
    task="Which dtype does each of twelve lines give under bf16 autocast on the CPU? Write a torch dtype, or "
    '"raises" if the line raises an exception. The check runs the lines.',
    difficulty=2,
    importance=4,
    minutes=10,
    lines=12,
    hints=(
        "Ask three things of each line, in this order: is its op on one of autocast's lists? If not, what does PyTorch do "
        "without autocast? Is there a tensor that autocast does not touch?",
        "Matmuls and linear layers are lowered, losses go to float32, cat goes to the widest. On the CPU, softmax and layer_norm "
        "are on no list. float64 and integers are never cast, and a matmul never promotes.",
        "Two of the twelve raise: one mixes a dtype that autocast lowers with one that it leaves alone, the other is in "
        "a nested region that is switched off.",
    ),
    judge=predicting.judge,
    why="Most surprises with AMP are one of these twelve: an op on no list, a tensor that is not cast, a region that is off.",
    alternative="ask the machine: run the line under `torch.autocast` and print `.dtype`, as the check does, or trace "
    "the whole model.",
    takes="value",
)

mini_autocast = Exercise(
    chapter="autocast",
    name="mini_autocast",
    number=2,
    title="Write autocast",
    task="Write `MiniAutocast(dtype, lower, fp32, widest)`, a `TorchFunctionMode`: ops of the three lists run in `dtype`, in "
    "float32, or in the widest dtype among their tensors. It casts a weight once per region, and has no effect after it. "
    "Output dtypes are those of `torch.autocast`, module by module, in the three models of the course.",
    difficulty=4,
    importance=4,
    minutes=30,
    lines=25,
    hints=(
        "Start without the cache: find the dtype for `func`, cast every tensor in `args` and `kwargs`, return "
        "`func(*args, **kwargs)`. Which tensors must not be cast?",
        "`tree_map(cast, (args, kwargs))` reaches tensors in lists and keywords. Cast float32, bfloat16 and float16 only, with "
        "`.to(dtype)`, which autograd records. For the widest list, float32 among the tensors decides.",
        "The cache is a dict from parameter to copy: for a leaf that requires grad, while `torch.is_grad_enabled()`. `__exit__` "
        "empties it and returns `super().__exit__(*error)`.",
    ),
    judge=mini.judge,
    why="Autocast is three lists, one cast and one dict; it has no idea what your model does.",
    alternative="`functools.reduce(torch.promote_types, dtypes)` for the widest list; a cache keyed by `id(parameter)`, with the "
    "parameter kept beside its copy so that no other gets its id.",
)

end_region = Exercise(
    chapter="autocast",
    name="end_region",
    number=3,
    title="End the region in time",
    task="The given loop opens one bf16 region around everything. Repair it: forward and loss run under autocast, backward "
    "does not, and every step uses the weights that the previous step left. Return the list of losses.",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=9,
    hints=(
        "What belongs in the region, and what does not? And how long do the copies of the weights live that autocast makes?",
        "The `with` block goes inside the `for` loop and holds two lines: the model's call and the loss.",
        "After the block, `loss.backward()`, `optimizer.step()`, `optimizer.zero_grad()`, `losses.append(loss.item())`.",
    ),
    judge=regions.judge_loop,
    why="A region is one forward pass and its loss. A wider one trains on old weights and lowers what you kept in float32.",
    alternative="`torch.autocast` as the decorator of a function that returns the loss; or one wide region with "
    "`cache_enabled=False` and backward under `enabled=False`, which casts each weight at each use.",
)

fp32_island = Exercise(
    chapter="autocast",
    name="fp32_island",
    number=4,
    title="Repair an fp32 island",
    task="The given router should compute its scores in float32 wherever it is called, but somebody forgot `.float()`. Write "
    "`router` so that it does: for x in float32, bf16 and fp16, in a region of either dtype. It returns float32, and "
    "gradients reach x and weight.",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=4,
    hints=(
        "`enabled=False` switches the casts off, in both directions: nothing is lowered, and nothing is cast up.",
        "An island has two halves: a nested region with `enabled=False` for the device of x, and `x.float()`. What happens "
        "to the squares if `.float()` comes after them?",
        "`with torch.autocast(x.device.type, enabled=False):`, in it `x = x.float()` first, then the given lines.",
    ),
    judge=regions.judge_island,
    why="Either half alone fails: without `.float()` dtypes clash, without `enabled=False` the matmul is lowered again.",
    alternative="no matmul, no island: `x.float()` and elementwise products with a sum, which are on no list; or the function "
    'under the decorator `@torch.autocast("cpu", enabled=False)`, with `x.float()` in it.',
)

safe_function = Exercise(
    chapter="autocast",
    name="safe_function",
    number=5,
    title="Make an autograd Function safe",
    task="The given Function computes squared distances, with a matmul that is useless in 16 bits. Write it so that forward and "
    "backward run in float32 whatever region it is called in, for tensors on the CPU and inputs in float32, bf16 or fp16; even "
    "if somebody calls `backward()` inside the region. The result is float32.",
    difficulty=3,
    importance=3,
    minutes=10,
    lines=12,
    hints=(
        "Nothing in forward or backward has to change. PyTorch has a decorator for each of them.",
        "`torch.amp.custom_fwd` can cast the inputs and switch autocast off for forward; `torch.amp.custom_bwd` gives "
        "backward the state that forward had. Both need to be told the device type.",
        'Under `@staticmethod`: `@torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)` on forward, '
        '`@torch.amp.custom_bwd(device_type="cpu")` on backward.',
    ),
    judge=functions.judge,
    why="Autograd differentiates what autocast did to ordinary ops; in a Function of your own, that is your job.",
    alternative="`with torch.autocast(x.device.type, enabled=False):` and `.float()` by hand, in forward and in backward: "
    "it works on every device, which `custom_fwd` with a fixed device type does not.",
    takes="value",
)

safe_loss = Exercise(
    chapter="autocast",
    name="safe_loss",
    number=6,
    title="Replace sigmoid and BCELoss",
    task="Write `classify`: the probabilities, and their mean binary cross-entropy with the targets. For moderate logits the "
    "loss equals the given one; for logits of ±60 it is still right and has a gradient; both hold in any region. The shape "
    "of `head(features)` is (batch, 1), that of targets (batch,).",
    difficulty=2,
    importance=4,
    minutes=8,
    lines=3,
    hints=(
        "Where does a large logit get lost: in the head, in sigmoid, or in the logarithm?",
        "sigmoid and logarithm in one: `F.binary_cross_entropy_with_logits(logits, targets)`. It takes logits, not "
        "probabilities.",
        "`logits = head(features).squeeze(-1)`, then `return torch.sigmoid(logits), "
        "F.binary_cross_entropy_with_logits(logits, targets)`.",
    ),
    judge=sigmoid.judge,
    why="CUDA's autocast refuses BCELoss; the CPU's takes it, and a confident mistake gets no gradient, or NaN in fp16.",
    alternative="`(F.softplus(z) - z * targets).mean()` with `z = logits.float()`: the same formula by hand.",
)

ALL = (predict_dtypes, mini_autocast, end_region, fp32_island, safe_function, safe_loss)
