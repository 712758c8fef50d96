"""The four exercises of chapter 08; `ALL` lists them in order. The judging stands in `judges/`."""

from __future__ import annotations

from amp_course.checking import Exercise
from amp_course.recipes.judges import by_hand, choosing, dying, norms

o2_by_hand = Exercise(
    chapter="recipes",
    name="o2_by_hand",
    number=1,
    title="O2 by hand",
    task="Write the class `HalfTrainer`: an fp16 model, float32 masters that the optimizer steps, and a `step` that scales the "
    "loss, unscales into the masters, skips what overflowed and copies back. It returns whether the step was taken.",
    difficulty=4,
    importance=4,
    minutes=20,
    lines=18,
    hints=(
        "Two sets of weights: which one does the forward pass use, and which one does the optimizer know?",
        "`__init__`: `model.half()`, then `[p.detach().float() for p in model.parameters()]` for `make_optimizer`. `step`: the "
        "loss from `model(inputs.half()).float()`, and `(loss * scale).backward()`.",
        "If all `p.grad` are finite: `master.grad = p.grad.float() / scale` for each pair, `self.optimizer.step()`, and "
        "`p.copy_(master)` under `torch.no_grad()`. In any case `self.model.zero_grad()`.",
    ),
    judge=by_hand.judge,
    why="This is Apex's O2. The masters are the real weights; the model's are a rounded copy. Paddle's O2 has masters too, but "
    "divides in fp16 unless you ask for `master_grad=True`, so it loses the smallest gradients on the way back.",
    alternative="masters made before `half()`: they start unrounded, a difference of one rounding, once. Apex makes them "
    "after it.",
)

keep_bn_fp32 = Exercise(
    chapter="recipes",
    name="keep_bn_fp32",
    number=2,
    title="A half model whose batch norms stay in fp32",
    task="Write `half_keep_bn(model)`: every batch norm keeps its float32 weights and statistics as they are, everything else "
    "becomes fp16, and the model takes float32 batches, or ids, as they come from a loader. Return the model.",
    difficulty=3,
    importance=4,
    minutes=12,
    lines=10,
    hints=(
        "What do BatchNorm1d, 2d, 3d and SyncBatchNorm have in common? And what of a layer is no parameter?",
        "All are `nn.modules.batchnorm._BatchNorm`. `module.parameters(recurse=False)` and `named_buffers(recurse=False)` "
        "are what a module holds itself; leave out the batch norms and whole numbers.",
        "`parameter.data = parameter.data.half()`, and `setattr(module, name, buffer.half())`; then "
        "`model.register_forward_pre_hook(lambda model, args: tuple(… for a in args))`, which halves floating tensors only.",
    ),
    judge=norms.judge,
    why="A variance is a mean of squares: it overflows fp16 from a spread of some 256 on, and one inf in the statistics is "
    "there for good.",
    alternative="`model.half()`, then `bn.float()` and the saved `state_dict` of the batch norms loaded back. Without the "
    "loading, a trained model's statistics were rounded on the way.",
)

where_it_dies = Exercise(
    chapter="recipes",
    name="where_it_dies",
    number=3,
    title="Where does it die?",
    task="Write `where_it_dies(step)`: given the record of a step in pure fp16, return what died first, as (kind, name), or "
    "None. The kinds are, in the order of a step: activation, loss, gradient, update.",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=14,
    hints=(
        "Four loops or questions, one after the other, each with a `return`. Which of the four needs `exact_gradients`?",
        "`torch.isfinite(output).all()` for outputs and the loss. A gradient died where it is 0 and the exact one is not; an "
        "update died where the gradient is not 0 and the new weight equals the old one.",
        "New weights in fp16: `weight - step.lr * gradient` of fp16 tensors. “More than half”: `dead.sum() > 0.5 * "
        "there.sum()`, with `there` the elements that count.",
    ),
    judge=dying.judge,
    why="NaN in a loss says that something died; which cure helps (a scaler, an op in fp32, master weights) depends on what.",
    alternative="a generator for each kind and `next(chain(…), None)`: the first is found, and nothing behind it is computed.",
)

choose_recipe = Exercise(
    chapter="recipes",
    name="choose_recipe",
    number=4,
    title="Choose a recipe",
    task="Six situations: which recipe would you start from? Answer with its name, such as 'o1'.",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=6,
    hints=(
        "First ask which 16-bit format the hardware computes in, then what it is that dies, then what there is too much of.",
        "Gradients or activations out of range: bf16, or a scaler. Updates lost: float32 weights somewhere. Bytes between "
        "steps: count them, `count_bytes` of chapter 06.",
        "`amp_course.recipes.guide.recommend(hardware, model, symptom)` has a leaf for each of the six.",
    ),
    judge=choosing.judge,
    why="Three questions (which format, what dies, what is too large) take you from a machine and a symptom to a recipe.",
    alternative="`AMP` is right more often than any other: begin there, and leave it only for a reason that you have measured.",
    takes="value",
)

SITUATIONS = choosing.SITUATIONS  # for the reader to print: exercise 4 chooses a recipe for each
ALL = (o2_by_hand, keep_bn_fp32, where_it_dies, choose_recipe)
