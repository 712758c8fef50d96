"""Answers to `compressed_hooks`, written without a look at its table of mistakes."""

from dataclasses import dataclass

import torch

from amp_course.checking import edited
from amp_course.frontiers.packing import pack, unpack


def by_bernoulli(model, generator):
    parameters = list(model.parameters())

    def is_parameter(tensor):
        places = [p.untyped_storage()._cdata for p in parameters]
        return tensor.untyped_storage()._cdata in places

    def keep(tensor):
        if tensor.dtype not in (
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float64,
        ) or is_parameter(tensor):
            return None, tensor
        with torch.no_grad():
            numbers = tensor.reshape(-1).to(torch.float32)
            size = -(-numbers.numel() // 64) * 64
            whole = numbers[-1:].repeat(size)
            whole[: numbers.numel()] = numbers
            groups = whole.reshape(-1, 64)
            low, high = groups.aminmax(dim=1)
            place = (groups - low[:, None]) / (high - low).clamp(min=1e-38)[:, None] * 3
            down = place.floor()
            up = torch.bernoulli(place - down, generator=generator)
            codes = (down + up).clamp(max=3)
        return pack(codes.to(torch.uint8)), torch.stack([low, high]), tensor.size(), tensor.dtype

    def give(kept):
        if kept[0] is None:
            return kept[1]
        codes, ends, size, dtype = kept
        count = size.numel()
        codes = unpack(codes, 4 * len(codes)).reshape(-1, 64)
        back = torch.lerp(ends[0][:, None], ends[1][:, None], codes / 3)
        return back.reshape(-1)[:count].reshape(size).to(dtype)

    return keep, give


@dataclass
class Kept:
    """What is kept of one tensor."""

    codes: torch.Tensor
    least: torch.Tensor
    step: torch.Tensor
    like: torch.Tensor  # on the meta device: a shape and a dtype


class Compressor:
    """The two functions as methods; a context manager comes back, too."""

    def __init__(self, model, generator, weights=True):
        self.generator = generator
        self.places = {p.untyped_storage().data_ptr() for p in model.parameters() if weights}

    def pack(self, tensor):
        if not tensor.dtype.is_floating_point or tensor.untyped_storage().data_ptr() in self.places:
            return tensor
        x = tensor.detach().flatten().float()
        short = -x.numel() % 64
        x = torch.nn.functional.pad(x, (0, short)).unflatten(0, (-1, 64))
        least, most = x.min(1).values, x.max(1).values
        step = (most - least) / 3
        steps = torch.nan_to_num((x - least[:, None]) / step[:, None])
        above = torch.rand(x.shape, generator=self.generator) < steps % 1
        codes = torch.clamp(steps.floor() + above, 0, 3).byte()
        return Kept(pack(codes), least, step, tensor.detach().to("meta"))

    def unpack(self, kept):
        if type(kept) is not Kept:
            return kept
        steps = unpack(kept.codes, 64 * len(kept.least)).unflatten(0, (-1, 64))
        values = kept.least.unsqueeze(1) + kept.step.unsqueeze(1) * steps
        return values.flatten()[: kept.like.numel()].reshape(kept.like.shape).to(kept.like.dtype)


def of_methods(model, generator):
    one = Compressor(model, generator)
    return torch.autograd.graph.saved_tensors_hooks(one.pack, one.unpack)


def of_two_lists(model, generator):
    one = Compressor(model, generator)
    return [one.pack, one.unpack]


def careless(model, generator):
    one = Compressor(model, generator, weights=False)
    return one.pack, one.unpack


UP, CODES = (
    "up = torch.bernoulli(place - down, generator=generator)",
    "codes = (down + up).clamp(max=3)",
)
PARAMETER = "return tensor.untyped_storage()._cdata in places"
ENDS = "return pack(codes.to(torch.uint8)), torch.stack([low, high]), tensor.size(), tensor.dtype"
TAKEN = "codes, ends, size, dtype = kept"
LOW = "low, high = groups.aminmax(dim=1)"
RIGHT = {
    "by Bernoulli": by_bernoulli,
    "methods in a context manager": of_methods,
    "a list": of_two_lists,
}
WRONG = {
    "weights are forgotten": (careless, "compresses parameters"),
    "only what is a parameter": (
        edited(by_bernoulli, {PARAMETER: "return any(tensor is p for p in parameters)"}),
        "knows parameters by their type",
    ),
    "to nearest": (edited(by_bernoulli, {UP: "up = place - down > 0.5"}), "rounds to nearest"),
    "a fair coin": (
        edited(by_bernoulli, {UP: "up = torch.bernoulli((place > down) / 2, generator=generator)"}),
        "tosses a coin",
    ),
    "the square of the chance": (
        edited(
            by_bernoulli, {UP: "up = torch.bernoulli((place - down) ** 2, generator=generator)"}
        ),
        None,
    ),
    "global draws": (
        edited(by_bernoulli, {UP: "up = torch.bernoulli(place - down)"}),
        "draws from elsewhere",
    ),
    "draws of a row": (
        edited(
            by_bernoulli,
            {UP: "up = torch.rand(len(groups), 1, generator=generator) < place - down"},
        ),
        "one draw for each group",
    ),
    "one range": (
        edited(
            by_bernoulli, {LOW: "low, high = (one.expand(len(groups)) for one in groups.aminmax())"}
        ),
        "one scale for all",
    ),
    "ends in bf16": (
        edited(
            by_bernoulli,
            {LOW: f"{LOW}\nlow, high = low.bfloat16().float(), high.bfloat16().float()"},
        ),
        None,
    ),
    "a step at least": (
        edited(by_bernoulli, {LOW: f"{LOW}\nhigh = torch.maximum(high, low + 1e-5)"}),
        "a smallest step",
    ),
    "ends in fp16": (
        edited(by_bernoulli, {LOW: f"{LOW}\nlow, high = low.half().float(), high.half().float()"}),
        None,
    ),
    "nothing": (lambda model, generator: (lambda t: t, lambda t: t), "keeps the tensor"),
    "float64 ends": (
        edited(
            by_bernoulli,
            {
                ENDS: ENDS.replace("[low, high])", "[low, high]).double()"),
                TAKEN: f"{TAKEN}\nends = ends.float()",
            },
        ),
        None,
    ),
    "halves": (
        lambda model, generator: (
            lambda t: t.bfloat16() if t.is_floating_point() else t,
            lambda t: t.float(),
        ),
        None,
    ),
    "not two": (lambda model, generator: by_bernoulli(model, generator)[0], None),
    "the context itself": (
        lambda model, generator: torch.autograd.graph.save_on_cpu(),
        "keeps the tensor",
    ),
}
