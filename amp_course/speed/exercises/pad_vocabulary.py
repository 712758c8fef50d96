"""Exercise 4 of chapter 09: pad the vocabulary of a head, and compare it with the old head."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, call_answer
from amp_course.kit.dtypes import dtype_name
from amp_course.speed.exercises._padded import (
    BIAS,
    DTYPES,
    HOLDS,
    PROBABILITY,
    REAL,
    SHAPE,
    FillsWithNaN,
    forward,
    parameters,
    training,
)

card = Card(
    chapter="speed",
    name="pad_vocabulary",
    number=4,
    title="Pad the vocabulary",
    difficulty=3,
    importance=3,
    minutes=15,
    lines=9,
    task="Write `pad_vocabulary(head, multiple)`: turn an `nn.Linear` from features to a "
    "vocabulary, with or without a bias, into a module whose weight, a parameter, has as many "
    "rows as the vocabulary rounded up to a multiple of `multiple`. The matmul runs over all of "
    "them. For inputs with any number of dimensions, cross_entropy of the output is as before, "
    "and so is every step of training: the real rows get the same gradients and keep their dtype, "
    "and nothing new is trained.",
    hints=(
        "`-vocabulary % multiple` rows are missing. Which of the two dimensions of `head.weight` "
        "do they belong to?",
        "A row of zeros gives a logit of 0, and e^0 = 1 counts in the softmax. How do you keep "
        "such a logit out of the loss?",
        "Replace the weight by `nn.Parameter(F.pad(head.weight.detach(), (0, 0, 0, extra)))`, and "
        "a bias in the same way. Then cut the logits: `head.register_forward_hook(lambda module, "
        "args, logits: logits[..., :vocabulary])`.",
    ),
    why="Sizes that are not multiples of 8 or 64 leave units of a GPU idle: GPT-2's 50,257 tokens "
    "are the best-known example.",
    alternative="leave the logits padded, and add a constant bias of -inf for the padded rows: a "
    "buffer, which is not trained. If the embedding shares the weight, it has the same rows, and "
    "no token refers to them.",
)


def right(head: Any, multiple: int) -> Any:
    vocabulary = head.out_features
    extra = -vocabulary % multiple
    head.weight = nn.Parameter(F.pad(head.weight.detach(), (0, 0, 0, extra)))
    if head.bias is not None:
        head.bias = nn.Parameter(F.pad(head.bias.detach(), (0, extra)))
    head.out_features = vocabulary + extra
    head.register_forward_hook(lambda module, args, logits: logits[..., :vocabulary])
    return head


EVALUATION, FAR = ", after `.eval()`", ", with logits around -20,000"
# vocabulary, features, multiple, bias, shape of the inputs without features, dtype, what is special
CASES = (
    (100, 24, 64, False, (6,), torch.float32, ""),
    (130, 24, 64, True, (6,), torch.float32, ", with a bias"),
    (50, 12, 8, False, (2, 3), torch.float32, ", for an input of three dimensions"),
    (50, 12, 8, False, (1, 2, 3), torch.float32, EVALUATION),
    (20, 12, 48, True, (), torch.float32, ", for a single vector"),
    (64, 16, 64, False, (6,), torch.float32, ", where no row is missing"),
    (100, 16, 64, True, (6,), torch.bfloat16, ", in bfloat16"),
    (70, 20, 32, True, (6,), torch.float32, FAR),
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """For each head: its parameters, then a forward pass, then two steps of training."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    drawn = (draw.randint(30, 200), 18, draw.choice([16, 48]), True, (6,), torch.float32, "")
    for vocabulary, features, multiple, bias, shape, dtype, special in (*CASES, drawn):
        case = f"for a vocabulary of {vocabulary} and multiple={multiple}{special}"
        head = nn.Linear(features, vocabulary, bias=bias)
        for parameter in head.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
        if special == FAR:
            head.bias.data -= 20_000
        old = copy.deepcopy(head.to(dtype))
        inputs = torch.randn(*shape, features, generator=generator).to(dtype)
        with FillsWithNaN():
            padded = call_answer(answer, case, head, multiple)
        if not isinstance(padded, nn.Module):
            kind = "None" if padded is None else f"an object of type {type(padded).__name__}"
            raise Wrong(f"{case}, your function returned {kind}, not a module")
        if special == EVALUATION:
            padded.eval()
        rows = vocabulary + -vocabulary % multiple
        facts = dict(multiple=multiple, vocabulary=vocabulary, features=features, rows=rows)
        outputs = parameters(padded, old)
        yield Case(case, outputs, facts)
        if outputs[SHAPE] != (rows, features) or outputs[DTYPES] != dtype_name(dtype):
            return  # the module may not even run
        outputs = forward(padded, case, vocabulary, inputs)
        yield Case(case, outputs, facts)
        exact = shape and dtype == torch.float32 and special != FAR
        if exact and outputs.get(PROBABILITY) == "none":
            targets = torch.randint(0, vocabulary, shape, generator=generator)
            yield Case(case, training(padded, case, vocabulary, inputs, targets), facts)


EXTRA, OUT = "extra = -vocabulary % multiple", "head.out_features = vocabulary + extra"
WEIGHT = "head.weight = nn.Parameter(F.pad(head.weight.detach(), (0, 0, 0, extra)))"
OLD_BIAS = "head.bias = nn.Parameter(F.pad(head.bias.detach(), (0, extra)))"
CUT = "head.register_forward_hook(lambda module, args, logits: logits[..., :vocabulary])"
LINEAR = (
    "F.linear(x, head.weight[:vocabulary], None if head.bias is None else head.bias[:vocabulary])"
)
ROWS = "give it {rows} rows of {features} features each"


def _weight(
    pad: str = "(0, 0, 0, extra)", old: str = "head.weight", more: str = ""
) -> dict[str, str]:
    return {WEIGHT: f"head.weight = nn.Parameter(F.pad({old}.detach(), {pad}){more})"}


mistakes = [
    Mistake(
        "the weight not padded",
        "the weight still has {vocabulary} rows. Pad the parameter itself, once: padding in the "
        "forward pass copies the whole weight at every step",
        edits={WEIGHT: "pass", OLD_BIAS: "pass"},
        violates="has as many rows",
    ),
    Mistake(
        "a multiple more",
        "no row is missing, but you add a whole multiple: `-vocabulary % multiple` is 0 here",
        edits={EXTRA: "extra = multiple - vocabulary % multiple"},
        violates="rounded up to a multiple",
    ),
    Mistake(
        "truncates",
        f"you round down and lose the last tokens: {ROWS}",
        edits={EXTRA: "extra = -(vocabulary % multiple)"},
    ),
    Mistake(
        "the next power of two",
        f"you round up to a power of two, which can nearly double the work: {ROWS}",
        edits={EXTRA: "extra = 2 ** (vocabulary - 1).bit_length() - vocabulary"},
    ),
    Mistake(
        "always 64",
        "you round up to a multiple of 64, but `multiple` is {multiple} here: " + ROWS,
        edits={EXTRA: "extra = -vocabulary % 64"},
        violates="a multiple of `multiple`",
    ),
    Mistake(
        "adds `multiple` rows",
        f"you add `multiple` rows, and the total is not a multiple of it: {ROWS}",
        edits={EXTRA: "extra = multiple"},
    ),
    Mistake(
        "pads the inputs too",
        "you pad the features too, but the rest of the model gives {features} of them: " + ROWS,
        edits=_weight("(0, -head.in_features % multiple, 0, extra)"),
    ),
    Mistake(
        "pads the wrong dimension",
        "you add columns. The vocabulary is the rows of `head.weight`, and `F.pad` starts with "
        "the last dimension",
        edits=_weight("(0, extra)"),
    ),
    Mistake(
        "pads the features instead",
        "you pad the features. Pad the vocabulary, which is dimension 0 of `head.weight`",
        edits=_weight("(0, -head.in_features % multiple)"),
    ),
    Mistake(
        "transposes the weight",
        "your weight is transposed: an `nn.Linear` stores it as (out_features, in_features)",
        edits=_weight("(0, extra)", "head.weight.T"),
    ),
    Mistake(
        "not a parameter",
        "the padded weight is not a parameter, so it is not trained: wrap it in `nn.Parameter`",
        edits={
            WEIGHT: "weight = F.pad(head.weight.detach(), (0, 0, 0, extra))\ndel head.weight\n"
            "head.weight = weight"
        },
        violates="a parameter",
    ),
    Mistake(
        "float32 always",
        "some of your parameters are float32, but the head's are bfloat16: keep the dtype",
        edits=_weight(old="head.weight.float()"),
        violates="keep their dtype",
    ),
    Mistake(
        "frozen",
        "the padded weight is frozen: its `requires_grad` is False, and the head's was True",
        edits=_weight(more=", requires_grad=False"),
    ),
    Mistake(
        "rows not filled",
        "the padded rows hold NaN or inf, as after `torch.empty`. Fill them with zeros: 0 · NaN "
        "is NaN, so even unused rows make gradients NaN",
        edits={
            WEIGHT: "new = head.weight.detach().new_empty(vocabulary + extra, head.in_features)\n"
            "new[:vocabulary] = head.weight.detach()\nhead.weight = nn.Parameter(new)"
        },
    ),
    Mistake(
        "cuts from the end",
        "where no row is missing, `[..., :-0]` is empty: cut with `[..., :vocabulary]`",
        edits={CUT: CUT.replace(":vocabulary", ":-extra")},
    ),
    Mistake(
        "the bias lost",
        "the head has a bias, but your module trains none: pad the bias as well",
        edits={OLD_BIAS: "head.bias = None"},
        violates="with or without a bias",
    ),
    Mistake(
        "a new bias to train",
        "the head has no bias, but your module trains one, also for real tokens: use a buffer, or "
        "cut the logits",
        edits={
            OLD_BIAS: "pass",
            OUT: "bias = torch.zeros(vocabulary) if head.bias is None else head.bias.detach()\n"
            f"head.bias = nn.Parameter(F.pad(bias, (0, extra)))\n{OUT}",
        },
        violates="nothing new is trained",
    ),
    Mistake(
        "new weights",
        "your weight does not contain the head's: copy its rows under `no_grad`, "
        "`weight[:vocabulary] = head.weight`",
        edits=_weight(old="torch.rand_like(head.weight)"),
        violates="cross_entropy of the output is as before",
    ),
    Mistake(
        "a new bias",
        "your bias does not contain the head's: copy it, like the weight",
        edits={OLD_BIAS: OLD_BIAS.replace("head.bias.detach()", "torch.zeros_like(head.bias)")},
    ),
    Mistake(
        "the bias not added",
        "your module holds the head's bias, but does not add it to the logits",
        edits={CUT: "head.forward = lambda x: F.linear(x, head.weight)[..., :vocabulary]"},
        violates="with or without a bias",
    ),
    Mistake(
        "pads in front",
        "the padded rows come first, so every token gets another token's row: put them last",
        edits=_weight("(0, 0, extra, 0)"),
    ),
    Mistake(
        "cuts before the matmul",
        "the matmul has {vocabulary} rows again: multiply by all rows, then cut the logits",
        edits={CUT: f"head.forward = lambda x: {LINEAR}"},
        violates="The matmul runs over all of them",
    ),
    Mistake(
        "padded logits take probability",
        "the padded tokens keep their logits, and the softmax gives them probability (e^0 for a "
        "row of zeros): set these logits to -inf, or cut them off",
        edits={CUT: "pass"},
    ),
    *(
        Mistake(
            f"a bias of {value} hides them",
            "a bias can hide the padded tokens only where the head has one, and this head has "
            "none: set their logits to -inf in the forward pass, or cut them off",
            edits={OLD_BIAS: OLD_BIAS.replace("extra)", f"extra), value={value}"), CUT: "pass"},
        )
        for value in ("-torch.inf", "-1e4")
    ),
    Mistake(
        "-inf in the weight",
        "rows of -inf give logits of inf, -inf or NaN, depending on the inputs' signs: put the "
        "-inf in the logits or in a bias",
        edits={CUT: "head.weight.data[vocabulary:] = -torch.inf"},
    ),
    Mistake(
        "cuts the second dimension",
        "this cuts the second dimension, but the logits are in the last: use `[..., :vocabulary]`",
        edits={CUT: CUT.replace("...", ":")},
        violates="For inputs with any number of dimensions",
    ),
    Mistake(
        "a finite constant",
        "padded logits are not low enough when real ones are around -20,000: use `-math.inf`",
        edits={
            CUT: CUT.replace("logits[...", "torch.cat([logits[...").replace(
                "y])", "y], logits[..., vocabulary:] - 1e4], dim=-1))"
            )
        },
    ),
    Mistake(
        "a trained bias of -inf",
        "the -inf are trained, and weight decay makes them NaN (-inf + inf). Use a buffer",
        edits={
            OLD_BIAS: OLD_BIAS.replace("(0, extra)", "(0, extra), value=-torch.inf"),
            CUT: f"if head.bias is None:\n    {CUT}",
        },
        violates="so is every step of training",
    ),
]

pad_vocabulary = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-4,
    messages={
        PROBABILITY: "{case}, the softmax over your logits gives padded tokens {got}: give them "
        "logits of -inf, or cut them off",
        DTYPES: "{case}, the dtype of your parameters is {got}: keep that of the head, {want}",
        HOLDS: "{case}, your weight holds NaN or inf: fill the padded rows with zeros",
        BIAS: "{case}, your bias does not begin with the head's",
        REAL: "{case}, rows 0 … {vocabulary} − 1 of your weight are not the head's",
    },
)
