"""Exercise 4 of chapter 09: a head with a padded vocabulary, next to the head as it was."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, call_answer, read_tensor
from amp_course.kit.dtypes import dtype_name
from amp_course.speed.counting import MATMUL, count_ops

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

LOW = -20_000  # a constant of -10,000 is not low enough next to these logits


def right(head: Any, multiple: int) -> Any:
    vocabulary = head.out_features
    extra = -vocabulary % multiple
    head.weight = nn.Parameter(F.pad(head.weight.detach(), (0, 0, 0, extra)))
    if head.bias is not None:
        head.bias = nn.Parameter(F.pad(head.bias.detach(), (0, extra)))
    head.out_features = vocabulary + extra
    head.register_forward_hook(lambda module, args, logits: logits[..., :vocabulary])
    return head


EVALUATION = ", after `.eval()`"
# vocabulary, features, multiple, bias, shape of the input before its features, dtype, what is
# special
CASES = (
    (100, 24, 64, False, (6,), torch.float32, ""),
    (130, 24, 64, True, (6,), torch.float32, ", with a bias"),
    (50, 12, 8, False, (2, 3), torch.float32, ", for an input of three dimensions"),
    (50, 12, 8, False, (1, 2, 3), torch.float32, EVALUATION),
    (20, 12, 48, True, (), torch.float32, ", for a single vector"),
    (64, 16, 64, False, (6,), torch.float32, ", where no row is missing"),
    (100, 16, 64, True, (6,), torch.bfloat16, ", in bfloat16"),
    (70, 20, 32, True, (6,), torch.float32, f", with logits around {LOW:,}"),
)
SHAPE, REAL, BIAS = (
    "the shape of the weight",
    "the rows of the real tokens",
    "the bias of the real tokens",
)
PROBABILITY = "the probability of padded tokens"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Heads with and without a bias, in two dtypes; inputs of one to four dimensions;
    no row missing; logits far below 0; a drawn head.
    """
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    drawn = (draw.randint(30, 200), 18, draw.choice([16, 48]), True, (6,), torch.float32, "")
    for vocabulary, features, multiple, bias, shape, dtype, special in (*CASES, drawn):
        case = f"for a vocabulary of {vocabulary} and multiple={multiple}{special}"
        head = nn.Linear(features, vocabulary, bias=bias)
        for parameter in head.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
        if str(LOW)[:3] in special:
            head.bias.data += LOW
        old = copy.deepcopy(head.to(dtype))
        inputs = torch.randn(*shape, features, generator=generator).to(dtype)
        with FillsWithNaN():
            padded = call_answer(answer, case, head, multiple)
        if not isinstance(padded, nn.Module):
            kind = "None" if padded is None else f"an object of type {type(padded).__name__}"
            raise Wrong(f"{case}, your function returned {kind}, not a module")
        if special == EVALUATION:
            padded.eval()
        parameters = _parameters(padded, old)
        facts = {
            "multiple": multiple,
            "vocabulary": vocabulary,
            "features": features,
            "rows": vocabulary + -vocabulary % multiple,
        }
        yield Case(case, parameters, facts)
        if parameters[SHAPE] != (facts["rows"], features):
            return  # the module may not even run
        forward = _forward(padded, case, vocabulary, inputs, values=dtype == torch.float32)
        yield Case(case, forward, facts)
        if (
            shape
            and dtype == torch.float32
            and not special.endswith("000")
            and forward.get(PROBABILITY) == "none"
        ):
            targets = torch.randint(0, vocabulary, shape, generator=generator)
            yield Case(case, _training(padded, case, vocabulary, inputs, targets), facts)


class FillsWithNaN(TorchFunctionMode):
    """Fill new, empty tensors with NaN, so that what an answer leaves in them does not depend on
    luck.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function."""
        out = func(*args, **(kwargs or {}))
        if (
            getattr(func, "__name__", "") in ("empty", "empty_like", "new_empty")
            and out.is_floating_point()
        ):
            out.detach().fill_(torch.nan)
        return out


def _matrix(module: nn.Module) -> Tensor | None:
    """Return the matrix among the parameters, the largest if there are several."""
    return max(
        (one for one in module.parameters() if one.dim() == 2), key=Tensor.numel, default=None
    )


TRAINED, PADDED = "the number of trained parameters", "what the weight holds"


def _parameters(padded: nn.Module, old: nn.Linear) -> dict[str, Any]:
    """Return what the parameters are."""
    weight, vocabulary = _matrix(padded), old.out_features
    biases = [one for one in padded.parameters() if one.dim() == 1]
    outputs: dict[str, Any] = {
        SHAPE: "unknown, as no parameter is a matrix" if weight is None else tuple(weight.shape),
        "the dtype of the parameters": " and ".join(
            sorted({dtype_name(one.dtype) for one in padded.parameters()})
        ),
        TRAINED: sum(one.requires_grad for one in padded.parameters()),
    }
    if (
        weight is not None
        and weight.dtype == old.weight.dtype
        and weight.shape[1] == old.in_features
    ):
        first, last = (
            torch.equal(rows, old.weight) for rows in (weight[:vocabulary], weight[-vocabulary:])
        )
        outputs[REAL] = "those of the head" if first else "the last ones" if last else "others"
    if weight is not None:
        outputs[PADDED] = "numbers" if weight.isfinite().all() else "NaN or inf"
    if old.bias is not None and len(biases) == 1 and biases[0].dtype == old.bias.dtype:
        outputs[BIAS] = (
            "that of the head" if torch.equal(biases[0][:vocabulary], old.bias) else "another"
        )
    return outputs


def _forward(
    padded: nn.Module, case: str, vocabulary: int, inputs: Tensor, values: bool
) -> dict[str, Any]:
    """Return what a forward pass computes, with the `values` of the logits or without."""
    with torch.no_grad(), count_ops() as counter:
        got = call_answer(padded, case, inputs.clone())
    logits = read_tensor(got, case, "logits", subject="your module returned").float()
    known = (
        inputs.shape[-1],
        inputs.numel() // inputs.shape[-1],
    )  # features and tokens; the other size of a matmul is its rows
    sizes = [
        [size for shape in call.shapes for size in shape[-2:]]
        for call in counter.calls
        if call.kind == MATMUL
    ]
    rows = [next((size for size in one if size not in known), 0) for one in sizes]
    fits = logits.shape[:-1] == inputs.shape[:-1] and logits.shape[-1] >= vocabulary
    outputs: dict[str, Any] = {
        "the number of rows in the matmul": (rows[0] if len(rows) == 1 else rows)
        if inputs.dim() > 1
        else "not counted",
        "the shape of the logits": "one row for each token" if fits else tuple(logits.shape),
    }
    if not fits:
        return outputs
    if values:
        outputs["the logits of real tokens"] = logits[..., :vocabulary]
    taken = float(logits.softmax(dim=-1)[..., vocabulary:].sum(dim=-1).mean())
    if taken != taken:
        return outputs | {
            PROBABILITY: "NaN"
            if all(one.isfinite().all() for one in padded.parameters())
            else "NaN, of infinities"
        }
    return outputs | {PROBABILITY: "some probability" if taken > 1e-6 else "none"}


def _training(
    padded: nn.Module, case: str, vocabulary: int, inputs: Tensor, targets: Tensor
) -> dict[str, Any]:
    """Return gradients and losses of two steps."""
    optimizer, losses = torch.optim.SGD(padded.parameters(), lr=0.5, weight_decay=0.01), []
    gradients: list[Tensor | None] = []
    for _ in range(2):
        features = inputs.clone().requires_grad_()
        logits = call_answer(padded, case, features)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        weight = _matrix(padded)
        gradients += [
            features.grad,
            None if weight is None or weight.grad is None else weight.grad[:vocabulary],
        ]
        optimizer.step()
        losses.append(loss.item())
    names = "the gradient of the inputs", "the gradient of the real rows"
    return {**dict(zip(names, gradients, strict=False)), "the losses of two steps": losses}


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
    """Return the edit of the line that pads the weight."""
    return {WEIGHT: f"head.weight = nn.Parameter(F.pad({old}.detach(), {pad}){more})"}


mistakes = [
    Mistake(
        "the weight not padded",
        "the weight still has {vocabulary} rows: pad the parameter itself, once. Padding in the "
        "forward pass would copy all of it at every step",
        edits={WEIGHT: "pass", OLD_BIAS: "pass"},
        violates="has as many rows",
    ),
    Mistake(
        "a multiple more",
        "no row is missing here, and you add a whole multiple: `-vocabulary % multiple` is 0 then",
        edits={EXTRA: "extra = multiple - vocabulary % multiple"},
        violates="rounded up to a multiple",
    ),
    Mistake(
        "truncates",
        "you round down, and lose the last tokens: " + ROWS,
        edits={EXTRA: "extra = -(vocabulary % multiple)"},
    ),
    Mistake(
        "the next power of two",
        "you round up to a power of two, which can nearly double the work: " + ROWS,
        edits={EXTRA: "extra = 2 ** (vocabulary - 1).bit_length() - vocabulary"},
    ),
    Mistake(
        "always 64",
        "you round up to a multiple of 64, and `multiple` is {multiple} here: " + ROWS,
        edits={EXTRA: "extra = -vocabulary % 64"},
        violates="a multiple of `multiple`",
    ),
    Mistake(
        "adds `multiple` rows",
        "you add `multiple` rows, and the sum is not a multiple of it: " + ROWS,
        edits={EXTRA: "extra = multiple"},
    ),
    Mistake(
        "pads the inputs too",
        "you pad the features too, and the model around the head has {features}: " + ROWS,
        edits=_weight("(0, -head.in_features % multiple, 0, extra)"),
    ),
    Mistake(
        "pads the wrong dimension",
        "you add columns: the rows of `head.weight` are the vocabulary, and F.pad begins with the "
        "last dimension",
        edits=_weight("(0, extra)"),
    ),
    Mistake(
        "pads the features instead",
        "you round up the features: the vocabulary is to be padded, dimension 0 of `head.weight`",
        edits=_weight("(0, -head.in_features % multiple)"),
    ),
    Mistake(
        "transposes the weight",
        "your weight is transposed: an `nn.Linear` keeps it as (out_features, in_features)",
        edits=_weight("(0, extra)", "head.weight.T"),
    ),
    Mistake(
        "not a parameter",
        "the padded weight is not a parameter, so no optimizer gets it: wrap it in `nn.Parameter`",
        edits={
            WEIGHT: "weight = F.pad(head.weight.detach(), (0, 0, 0, extra))\ndel "
            "head.weight\nhead.weight = weight"
        },
        violates="a parameter",
    ),
    Mistake(
        "float32 always",
        "your weight is float32, and the head is bfloat16: make it in the dtype of `head.weight`",
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
        "the padded rows hold NaN or inf (`torch.empty` leaves there what it finds in memory), "
        "and 0 · NaN is NaN, so even rows that nobody uses make gradients NaN: fill them with "
        "zeros",
        edits={
            WEIGHT: "new = head.weight.detach().new_empty(vocabulary + extra, "
            "head.in_features)\nnew[:vocabulary] = head.weight.detach()\nhead.weight = "
            "nn.Parameter(new)"
        },
    ),
    Mistake(
        "cuts from the end",
        "where no row is missing, `[..., :-0]` is empty: cut at the vocabulary, `[..., "
        ":vocabulary]`",
        edits={CUT: CUT.replace(":vocabulary", ":-extra")},
    ),
    Mistake(
        "the bias lost",
        "the head has a bias, and your module has none to train: pad it as well",
        edits={OLD_BIAS: "head.bias = None"},
        violates="with or without a bias",
    ),
    Mistake(
        "a new bias to train",
        "the head has no bias, and yours is trained, for real tokens as well: use a buffer, or "
        "cut the logits",
        edits={
            OLD_BIAS: "pass",
            OUT: f"bias = torch.zeros(vocabulary) if head.bias is None else "
            f"head.bias.detach()\nhead.bias = nn.Parameter(F.pad(bias, (0, extra)))\n{OUT}",
        },
        violates="nothing new is trained",
    ),
    Mistake(
        "new weights",
        "your weight does not hold the head's: copy its rows, `weight[:vocabulary] = "
        "head.weight`, under `no_grad`",
        edits=_weight(old="torch.rand_like(head.weight)"),
        violates="cross_entropy of the output is as before",
    ),
    Mistake(
        "a new bias",
        "your bias does not hold the head's: copy it, as the weight",
        edits={OLD_BIAS: OLD_BIAS.replace("head.bias.detach()", "torch.zeros_like(head.bias)")},
    ),
    Mistake(
        "pads in front",
        "the padded rows come first, so each token gets another's row: put them after the real "
        "ones",
        edits=_weight("(0, 0, extra, 0)"),
    ),
    Mistake(
        "cuts before the matmul",
        "the matmul has {vocabulary} rows again: let it run with the padded weight, and cut the "
        "logits after it",
        edits={CUT: f"head.forward = lambda x: {LINEAR}"},
        violates="The matmul runs over all of them",
    ),
    Mistake(
        "padded logits take probability",
        "the padded tokens have logits of their own, and the softmax gives them probability, e^0 "
        "for a row of zeros: give them logits of -inf, or cut them off",
        edits={CUT: "pass"},
    ),
    Mistake(
        "-inf in the weight",
        "rows of -inf make logits of inf, -inf and NaN, by the signs of the inputs: -inf belongs "
        "in the logits or a bias",
        edits={CUT: "head.weight.data[vocabulary:] = -torch.inf"},
    ),
    Mistake(
        "cuts the second dimension",
        "`[:, :vocabulary]` cuts the second dimension, and that of the logits is the last: `[..., "
        ":vocabulary]`",
        edits={CUT: CUT.replace("...", ":")},
        violates="For inputs with any number of dimensions",
    ),
    Mistake(
        "a finite constant",
        "padded tokens have a logit that is low, but not low enough where real ones are around "
        "-20,000: take `-math.inf`",
        edits={
            CUT: CUT.replace("logits[...", "torch.cat([logits[...").replace(
                "y])", "y], logits[..., vocabulary:] - 1e4], dim=-1))"
            )
        },
    ),
    Mistake(
        "a trained bias of -inf",
        "the -inf are trained, and weight decay makes them NaN: -inf minus a part of it. Keep "
        "them in a buffer",
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
        BIAS: "{case}, your bias does not begin with that of the head",
        REAL: "{case}, rows 0 … {vocabulary} − 1 of your weight are not those of the head",
    },
)
