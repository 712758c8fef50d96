"""The six exercises of chapter 02; `ALL` lists them in order. The code that judges is in `judges/`."""

from __future__ import annotations

from amp_course.checking import Exercise
from amp_course.underflow.judges import chance, reductions, rounding, weights

smallest_step = Exercise(
    chapter="underflow",
    name="smallest_step",
    number=1,
    title="The smallest step from 1",
    task="Write `smallest_step(dtype)`: the smallest positive x of the dtype for which 1 + x, computed in that dtype, is not 1. "
    "Find it by adding; `torch.finfo` is off limits.",
    difficulty=2,
    importance=4,
    minutes=8,
    lines=6,
    hints=(
        "Which powers of two can you add to 1 and see a difference? Halve until you see none. And then: is x a power of two?",
        "A sum that is not a number of the format goes to the nearer one, and from exactly the middle to the even one. The "
        "largest power of two that does nothing lands on such a middle.",
        "Start with `x = torch.ones((), dtype=dtype)`; while `one + x != one`, halve it. What comes right after the x that is "
        "left? `torch.nextafter(x, one)`.",
    ),
    judge=rounding.judge_smallest_step,
    why="An update smaller than this fraction of its weight does nothing at all: it is the number behind master weights.",
    alternative="bisect the bit patterns: positive floats are in the order of their patterns, "
    "`torch.tensor(pattern, dtype=torch.int16).view(torch.float16)`.",
)

lost_fraction = Exercise(
    chapter="underflow",
    name="lost_fraction",
    number=2,
    title="Where do the numbers go?",
    task="Write `lost_fraction(tensor, fmt)`: of the numbers that are not zero to begin with, which fraction is lost, subnormal, "
    "normal, overflow in the format? Return a dict with these four keys. `round_to` does the rounding.",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=8,
    hints=(
        "Which numbers do you divide by? And do you look at the numbers before rounding, or after?",
        "First `there = tensor[tensor != 0]`, then `size = round_to(there, fmt).abs()`. Each zone is a comparison with 0, "
        "`fmt.smallest_normal`, or inf.",
        "Lost: `size == 0`. Subnormal: between 0 and `fmt.smallest_normal`. Overflow: `size.isinf()`. Normal: the rest. "
        "`.float().mean().item()` makes a fraction of each.",
    ),
    judge=rounding.judge_lost_fraction,
    why="This is the first measurement to make when fp16 misbehaves: which layer loses how much, before and after scaling.",
    alternative="`amp_course.underflow.zone_fractions` does the same, counts zeros and NaN apart and takes a loss scale.",
)

safe_softmax = Exercise(
    chapter="underflow",
    name="safe_softmax",
    number=3,
    title="A softmax that survives",
    task="Write `safe_softmax(logits, mask)` for fp16 logits as large as 100 and a mask, both (rows, n). True in the mask means "
    "visible. What is masked gets exactly 0, a row in which everything is masked is all 0, and fp16 comes back.",
    difficulty=3,
    importance=5,
    minutes=12,
    lines=6,
    hints=(
        "Two traps: exp(100) is inf even in float32; and in a row of nothing but −inf, what is the maximum?",
        "Compute in float32. Fill what is masked with a finite number that lies far below every logit: `torch.finfo(…).min` of "
        "the dtype you compute in.",
        "`x = logits.float().masked_fill(~mask, torch.finfo(torch.float32).min)`, then subtract the row's maximum, exp, divide "
        "by the row's sum (or `torch.softmax`, which does all that). Last, `masked_fill(~mask, 0)` and back to fp16.",
    ),
    judge=reductions.judge_softmax,
    why="One sequence of nothing but padding gives a row of NaN, and the mean over the batch, the loss, is NaN with it.",
    alternative="with −inf as the filler, as torch's own attention has it, and a `torch.where` that puts 0 into the empty rows.",
)

steady_sum = Exercise(
    chapter="underflow",
    name="steady_sum",
    number=4,
    title="A sum that does not stand still",
    task="Write `steady_sum(terms)`: add thousands of fp16 or bf16 tensors of one shape, element by element, as a loop that "
    "accumulates gradients or a loss does. Any dtype may come back, as long as the value is right to a few roundings.",
    difficulty=2,
    importance=5,
    minutes=6,
    lines=4,
    hints=(
        "Where does the growing number live?",
        "Casting at the end is too late: the terms are already gone. What has to be wide is the total, all the time.",
        "`total = torch.zeros_like(terms[0], dtype=torch.float32)`; then `total += term` for each. An addition in place keeps "
        "the dtype of the left side.",
    ),
    judge=reductions.judge_steady_sum,
    why="A running loss or an accumulated gradient in 16 bits stops growing after some hundred (bf16) or thousand (fp16) "
    "terms, silently.",
    alternative="Kahan's sum in 16 bits: a second 16-bit number carries what each addition rounds away. Optimizers for pure "
    "bf16 do that.",
)

master_sgd = Exercise(
    chapter="underflow",
    name="master_sgd",
    number=5,
    title="SGD with master weights",
    task="Write the class `MasterSGD(params, lr)` with a method `step()`. The parameters are fp16 or bf16 and stay so; the "
    "updates are made on float32 copies that live as long as the optimizer does.",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=9,
    hints=(
        "What has to survive from one step to the next, and in which dtype?",
        "`__init__` keeps `list(params)` and one master for each: `p.detach().clone().float()`. `step` runs under "
        "`@torch.no_grad()` and leaves out parameters whose gradient is None.",
        "For each pair: `master -= self.lr * p.grad.float()`, then `p.copy_(master)`, which rounds into the parameter's dtype.",
    ),
    judge=weights.judge_master_sgd,
    why="AMP does this without saying so: the parameters you own are the float32 masters, and autocast makes the copies.",
    alternative="a subclass of `torch.optim.Optimizer` with the masters in `self.state`, as `amp_course.underflow.MasterSGD` is; "
    "beware that torch casts state to the parameter's dtype when it loads a state_dict.",
)

stochastic_rounding = Exercise(
    chapter="underflow",
    name="stochastic_rounding",
    number=6,
    title="Round at random, and be right on average",
    task="Write `stochastic_round(x, spacing, generator)`: round each element to a multiple of its spacing, up or down, so that "
    "the mean is x. The mean of 20,000 draws has to be within 5 standard errors. Draw from the generator.",
    difficulty=4,
    importance=3,
    minutes=12,
    lines=4,
    hints=(
        "A number 0.3 of the way from its lower neighbour to the upper one: how often should it go up?",
        "Count in spacings: `steps = x / spacing`. Add noise, uniform from 0 to 1, a draw for each element; then which rounding?",
        "`torch.floor(x / spacing + torch.rand(x.shape, generator=generator)) * spacing`. `floor` and not `trunc`: they differ "
        "below zero.",
    ),
    judge=chance.judge,
    why="With it, pure bf16 weights can learn without master copies: an update of a tenth of a spacing moves one weight in ten.",
    alternative="on bits: add a random 16-bit integer to the float32 pattern and clear its low 16 bits, which gives bf16. There "
    "the sign is a bit of its own, so cutting off rounds both signs alike.",
)

ALL = (smallest_step, lost_fraction, safe_softmax, steady_sum, master_sgd, stochastic_rounding)
