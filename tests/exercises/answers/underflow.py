import math

import torch

from amp_course.bits.rounding import round_to
from amp_course.underflow import MasterSGD, zone_fractions


# --- 1. smallest_step -------------------------------------------------------------------------------------
def one_right(dtype):
    one = torch.ones((), dtype=dtype)
    x = one.clone()
    while one + x != one:
        x = x / 2
    return torch.nextafter(x, one)


def one_right_bisects(dtype):
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[torch.empty((), dtype=dtype).element_size()]
    one = torch.tensor(1.0, dtype=dtype)

    def value(pattern):
        return torch.tensor(pattern, dtype=integer).view(dtype)

    low, high = 0, one.view(integer).item()
    while high - low > 1:
        middle = (low + high) // 2
        if one + value(middle) == one:
            low = middle
        else:
            high = middle
    return value(high).item()


def one_gap(dtype):
    x = torch.ones((), dtype=dtype)
    while 1 + x / 2 != 1:
        x = x / 2
    return x.item()


def one_tie(dtype):
    x = torch.ones((), dtype=dtype)
    while 1 + x != 1:
        x = x / 2
    return x


def one_python(dtype):
    x = 1.0
    while 1.0 + x / 2 != 1.0:
        x /= 2
    return x


def one_float32(dtype):
    x = torch.tensor(1.0)
    while 1 + x != 1:
        x = x / 2
    return torch.nextafter(x, torch.tensor(1.0)).item()


def one_smallest(dtype):
    x = torch.ones((), dtype=dtype)
    while x / 2 != 0:
        x = x / 2
    return x


def one_sum(dtype):
    return torch.nextafter(torch.ones((), dtype=dtype), torch.full((), 2.0, dtype=dtype))


def one_finfo(dtype):
    return torch.nextafter(torch.tensor(torch.finfo(dtype).eps / 2, dtype=dtype), torch.ones((), dtype=dtype))


def one_tenths(dtype):
    x = torch.ones((), dtype=dtype)
    while 1 + x / 10 != 1:
        x = x / 10
    return x


def one_unrounded(dtype):
    return one_right(dtype).item() * (1 - 2.0**-50)


def one_zero(dtype):
    return 0.0


def one_string(dtype):
    return "2**-11"


# --- 2. lost_fraction -------------------------------------------------------------------------------------
def zones(x, fmt, lost=None, subnormal=None, normal=None, overflow=None, total=None):
    there = x[x != 0]
    size = round_to(there, fmt).abs()
    n = total or len(there)

    def share(mask):
        return mask.sum().item() / n

    return {
        "lost": share(size == 0) if lost is None else lost,
        "subnormal": share((size > 0) & (size < fmt.smallest_normal)) if subnormal is None else subnormal,
        "normal": share((size >= fmt.smallest_normal) & size.isfinite()) if normal is None else normal,
        "overflow": share(~size.isfinite()) if overflow is None else overflow,
    }


def two_right_loop(x, fmt):
    counts = dict.fromkeys(("overflow", "normal", "subnormal", "lost"), 0)
    numbers = [value for value in x.flatten().tolist() if value != 0]
    for value in round_to(torch.tensor(numbers, dtype=torch.float64), fmt).abs().tolist():
        if value == 0:
            counts["lost"] += 1
        elif not math.isfinite(value):
            counts["overflow"] += 1
        else:
            counts["normal" if value >= fmt.smallest_normal else "subnormal"] += 1
    return {zone: torch.tensor(count / len(numbers)) for zone, count in counts.items()}


def two_package(x, fmt):
    return vars(zone_fractions(x, fmt))


def two_counts_zeros(x, fmt):
    rounded = round_to(x, fmt)
    return zones(x, fmt, lost=(rounded == 0).float().mean().item())


def two_divides_by_all(x, fmt):
    return zones(x, fmt, total=x.numel())


def two_subnormals_lost(x, fmt):
    right = zones(x, fmt)
    return right | {"lost": right["lost"] + right["subnormal"], "subnormal": 0.0}


def two_threshold(x, fmt):
    there = x[x != 0].abs()
    return zones(x, fmt, lost=(there < fmt.smallest_subnormal).float().mean().item())


def two_signed(x, fmt):
    rounded = round_to(x[x != 0], fmt)
    return zones(x, fmt, lost=(rounded < fmt.smallest_subnormal).float().mean().item())


def two_over_max(x, fmt):
    there = x[x != 0].abs()
    return zones(x, fmt, overflow=(there > fmt.max).float().mean().item())


def two_only_nan(x, fmt):
    rounded = round_to(x[x != 0], fmt)
    return zones(x, fmt, overflow=rounded.isnan().float().mean().item())


def two_subnormal_below(x, fmt):
    there = x[x != 0].abs()
    band = (there < fmt.smallest_normal) & (there >= fmt.smallest_subnormal)
    return zones(x, fmt, subnormal=band.float().mean().item())


def two_normal_too(x, fmt):
    right = zones(x, fmt)
    return right | {"normal": right["normal"] + right["subnormal"]}


def two_percent(x, fmt):
    return {zone: 100 * share for zone, share in zones(x, fmt).items()}


def two_counts(x, fmt):
    return {zone: share * (x != 0).sum() for zone, share in zones(x, fmt).items()}


def two_one_number(x, fmt):
    return zones(x, fmt)["lost"]


def two_none(x, fmt):
    zones(x, fmt)


def two_in_place(x, fmt):
    x.abs_()
    return zones(x, fmt)


# --- 3. safe_softmax --------------------------------------------------------------------------------------
def three_right(logits, mask):
    x = logits.float().masked_fill(~mask, torch.finfo(torch.float32).min)
    return x.softmax(dim=-1).masked_fill(~mask, 0).to(logits.dtype)


def three_right_by_hand(logits, mask):
    x = logits.float().masked_fill(~mask, -1e30)
    e = torch.exp(x - x.amax(dim=-1, keepdim=True)) * mask
    return (e / e.sum(dim=-1, keepdim=True).clamp_min(1e-9)).half()


def three_right_inf(logits, mask):
    x = torch.where(mask, logits, -torch.inf).softmax(dim=-1)
    return torch.where(mask.any(dim=-1, keepdim=True), x, 0.0).half()


def three_naive(logits, mask):
    e = torch.exp(logits) * mask
    return e / e.sum(dim=-1, keepdim=True)


def three_naive_float(logits, mask):
    e = torch.exp(logits.float()) * mask
    return (e / e.sum(dim=-1, keepdim=True)).half()


def three_minus_inf(logits, mask):
    return logits.masked_fill(~mask, -torch.inf).softmax(dim=-1)


def three_minus_1e9(logits, mask):
    return logits.masked_fill(~mask, -1e9).softmax(dim=-1)


def three_finfo_only(logits, mask):
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(dim=-1)


def three_global_max(logits, mask):
    x = logits.float().masked_fill(~mask, torch.finfo(torch.float32).min)
    e = torch.exp(x - x.max()) * mask
    return torch.where(mask.any(dim=-1, keepdim=True), e / e.sum(dim=-1, keepdim=True), 0.0).half()


def three_inverted(logits, mask):
    return three_right(logits, ~mask)


def three_no_mask(logits, mask):
    return torch.where(mask.any(dim=-1, keepdim=True), logits.softmax(dim=-1), 0.0)


def three_after(logits, mask):
    return logits.softmax(dim=-1) * mask


def three_dim(logits, mask):
    x = logits.float().masked_fill(~mask, torch.finfo(torch.float32).min)
    return x.softmax(dim=0).masked_fill(~mask, 0).to(logits.dtype)


def three_float32(logits, mask):
    return three_right(logits.float(), mask)


def three_masked_max(logits, mask):
    x = logits.float()
    e = torch.exp(x - x.amax(dim=-1, keepdim=True)) * mask
    return (e / (e.sum(dim=-1, keepdim=True) + 1e-6)).half()


def three_small_filler(logits, mask):
    x = logits.float().masked_fill(~mask, -1.0)
    return (x.softmax(dim=-1) * mask.any(dim=-1, keepdim=True)).half()


def three_in_place(logits, mask):
    logits[~mask] = 0
    return three_right(logits, mask)


# --- 4. steady_sum ----------------------------------------------------------------------------------------
def four_right(terms):
    total = torch.zeros_like(terms[0], dtype=torch.float32)
    for term in terms:
        total += term
    return total


def four_right_torch(terms):
    return torch.stack(terms).sum(dim=0)


def four_right_kahan(terms):
    total = carried = torch.zeros_like(terms[0])
    for term in terms:
        wanted = term + carried
        grown = total + wanted
        carried = wanted - (grown - total)
        total = grown
    return total


def four_right_pairwise(terms):
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return four_right_pairwise(terms[:middle]) + four_right_pairwise(terms[middle:])


def four_builtin(terms):
    return sum(terms)


def four_casts_result(terms):
    total = torch.zeros_like(terms[0])
    for term in terms:
        total = total + term
    return total.float()


def four_rounds_back(terms):
    total = torch.zeros_like(terms[0])
    for term in terms:
        total = (total.float() + term.float()).to(term.dtype)
    return total


def four_in_place(terms):
    total = terms[0].float() if False else terms[0]
    for term in terms[1:]:
        total += term
    return total


def four_half(terms):
    return sum(term.half() for term in terms)


def four_bfloat(terms):
    return sum(term.bfloat16() for term in terms)


def four_mean(terms):
    return torch.stack(terms).float().mean(dim=0)


def four_times(terms):
    return terms[0].float() * len(terms)


def four_first_missing(terms):
    return torch.stack(terms[1:]).double().sum(dim=0)


def four_all(terms):
    return torch.stack(terms).float().sum()


def four_none(terms):
    four_right(terms)


# --- 5. master_sgd ----------------------------------------------------------------------------------------
class FiveRight:
    def __init__(self, params, lr):
        self.params = list(params)
        self.lr = lr
        self.masters = [p.detach().clone().float() for p in self.params]

    def update(self, p, master):
        master -= self.lr * p.grad.float()

    def write(self, p, master):
        p.copy_(master)

    @torch.no_grad()
    def step(self):
        for p, master in zip(self.params, self.masters, strict=True):
            if p.grad is not None:
                self.update(p, master)
                self.write(p, master)


class FiveRightDict:
    """Double masters, made late, written through .data."""

    def __init__(self, params, lr):
        self.masters = {p: p.data.double() for p in params}
        self.lr = lr

    def step(self):
        for p in self.masters:
            if p.grad is None:
                continue
            self.masters[p] = self.masters[p] - self.lr * p.grad.double()
            p.data = self.masters[p].to(p.dtype)


class FiveNoCopyKept(FiveRight):
    @torch.no_grad()
    def step(self):
        for p in self.params:
            if p.grad is not None:
                master = p.float()
                master -= self.lr * p.grad.float()
                p.copy_(master)


class FivePlain(FiveRight):
    @torch.no_grad()
    def step(self):
        for p in self.params:
            if p.grad is not None:
                p -= self.lr * p.grad


class FiveIterator(FiveRight):
    def __init__(self, params, lr):
        self.params = params
        self.lr = lr
        self.masters = {}

    @torch.no_grad()
    def step(self):
        for p in self.params:
            master = self.masters.setdefault(p, p.detach().clone().float())
            if p.grad is not None:
                self.update(p, master)
                self.write(p, master)


class FiveNeverWritten(FiveRight):
    def write(self, p, master):
        p.clone().copy_(master)


class FiveBecomesFloat(FiveRight):
    def write(self, p, master):
        p.data = master.clone()


class FiveLowProduct(FiveRight):
    def update(self, p, master):
        master -= self.lr * p.grad


class FiveAscends(FiveRight):
    def update(self, p, master):
        master += self.lr * p.grad.float()


class FiveNoRate(FiveRight):
    def update(self, p, master):
        master -= p.grad.float()


class FiveNoneGradient(FiveRight):
    @torch.no_grad()
    def step(self):
        for p, master in zip(self.params, self.masters, strict=True):
            self.update(p, master)
            self.write(p, master)


class FiveWatched(FiveRight):
    def step(self):
        for p, master in zip(self.params, self.masters, strict=True):
            if p.grad is not None:
                master -= self.lr * p.grad.float()
                p.copy_(master)


class FiveNoStep:
    def __init__(self, params, lr):
        self.params = list(params)


class FiveHalfMaster(FiveRight):
    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.masters = [p.detach().clone() for p in self.params]


# --- 6. stochastic_rounding -------------------------------------------------------------------------------
def six_right(x, spacing, generator):
    return torch.floor(x / spacing + torch.rand(x.shape, generator=generator)) * spacing


def six_right_compares(x, spacing, generator):
    steps = x.double() / spacing
    below = steps.floor()
    draw = torch.rand(x.shape, dtype=torch.float64, generator=generator)
    return torch.where(draw < steps - below, below + 1, below) * spacing


def six_right_bernoulli(x, spacing, generator):
    steps = x.abs() / spacing
    below = steps.floor()
    return (below + torch.bernoulli(steps - below, generator=generator)) * spacing * x.sign()


def six_nearest(x, spacing, generator):
    return torch.round(x / spacing) * spacing


def six_cuts(x, spacing, generator):
    return torch.trunc(x / spacing) * spacing


def six_truncates(x, spacing, generator):
    return torch.trunc(x / spacing + torch.rand(x.shape, generator=generator)) * spacing


def six_int(x, spacing, generator):
    return (x / spacing + torch.rand(x.shape, generator=generator)).int() * spacing


def six_remainder(x, spacing, generator):
    steps = x / spacing
    left = torch.fmod(steps.abs(), 1)
    return (torch.floor(steps) + (torch.rand(x.shape, generator=generator) < left)) * spacing


def six_one_draw(x, spacing, generator):
    return torch.floor(x / spacing + torch.rand((), generator=generator)) * spacing


def six_coin(x, spacing, generator):
    steps = x / spacing
    up = torch.rand(x.shape, generator=generator) < 0.5
    return torch.where(up, steps.ceil(), steps.floor()) * spacing


def six_moves_exact(x, spacing, generator):
    steps = x / spacing
    below = steps.floor()
    return (below + (torch.rand(x.shape, generator=generator) <= (steps - below).clamp_min(0.05))) * spacing


def six_swapped(x, spacing, generator):
    steps = x / spacing
    below = steps.floor()
    up = (torch.rand(x.shape, generator=generator) > steps - below) & (steps != below)
    return (below + up) * spacing


def six_noise_and_nearest(x, spacing, generator):
    return torch.round(x / spacing + torch.rand(x.shape, generator=generator)) * spacing


def six_normal_noise(x, spacing, generator):
    return torch.round(x / spacing + torch.randn(x.shape, generator=generator)) * spacing


def six_wide_noise(x, spacing, generator):
    moved = torch.floor(x / spacing + 2 * torch.rand(x.shape, generator=generator))
    return torch.where(x / spacing == torch.floor(x / spacing), x, moved * spacing)


def six_half_noise(x, spacing, generator):
    inner = torch.round(x / spacing + 0.5 * (torch.rand(x.shape, generator=generator) - 0.5))
    return inner * spacing


def six_own_draws(x, spacing, generator):
    return torch.floor(x / spacing + torch.rand(x.shape)) * spacing


def six_no_spacing(x, spacing, generator):
    return torch.floor(x + torch.rand(x.shape, generator=generator))


def six_only_noise(x, spacing, generator):
    return x + (torch.rand(x.shape, generator=generator) - 0.5) * spacing


def six_steps(x, spacing, generator):
    return six_right(x, spacing, generator).mean(dim=1)


WRONG = {
    "smallest_step": {
        "the gap above 1": (one_gap, "the gap between 1 and the next number"),
        "the tie": (one_tie, "the tie goes to the even"),
        "Python's own floats": (one_python, "belongs to fp64"),
        "ignores the dtype": (one_float32, "belongs to fp32"),
        "the smallest number": (one_smallest, "how small it can be and still move 1"),
        "the sum": (one_sum, "looks like the sum 1 + x"),
        "asks finfo": (one_finfo, "asks `torch.finfo`"),
        "divides by ten": (one_tenths, "a smaller x moves 1 too"),
        "not of the dtype": (one_unrounded, "is no number of"),
        "zero": (one_zero, "x is positive"),
        "a string": (one_string, "which is no number"),
    },
    "lost_fraction": {
        "counts zeros that were zero before": (two_counts_zeros, "counts the zeros that were zero before"),
        "divides by all numbers": (two_divides_by_all, "you divide by all numbers"),
        "calls subnormals lost": (two_subnormals_lost, "calls subnormals lost"),
        "compares with the smallest number": (two_threshold, "compares with the smallest number"),
        "forgets the sign": (two_signed, "counts every negative one"),
        "compares with the largest number": (two_over_max, "compares with the largest number"),
        "looks for NaN": (two_only_nan, "comes out as inf, and not as NaN"),
        "subnormal without what is rounded up": (two_subnormal_below, "leaves out what is rounded up"),
        "normal with subnormal": (two_normal_too, "counts the subnormal ones as well"),
        "percent": (two_percent, "in percent"),
        "counts": (two_counts, "this is how many there are"),
        "one number": (two_one_number, "a dict with the keys"),
        "returns None": (two_none, "returned None"),
        "changes the tensor": (two_in_place, "changed the tensor"),
    },
    "safe_softmax": {
        "exp overflows": (three_naive, "Subtract the row's maximum"),
        "exp overflows in float32 too": (three_naive_float, "in float32 too"),
        "−inf and an empty row": (three_minus_inf, "in which everything is masked came out as NaN"),
        "−1e9 in fp16": (three_minus_1e9, "beyond fp16's range"),
        "finfo.min alone": (three_finfo_only, "gives equal shares"),
        "one maximum for all rows": (three_global_max, "has to be the row's own"),
        "mask inverted": (three_inverted, "the wrong way round"),
        "no mask": (three_no_mask, "the mask has no effect"),
        "masks the result": (three_after, "do not add up to 1"),
        "columns": (three_dim, "the columns add up to 1"),
        "float32 comes back": (three_float32, "their dtype is float32"),
        "maximum of what is masked": (three_masked_max, "Mask first, then take the maximum"),
        "too small a filler": (three_small_filler, "it has to be exactly 0"),
        "writes into the logits": (three_in_place, "changed the logits"),
    },
    "steady_sum": {
        "the built-in sum": (four_builtin, "the total stops growing"),
        "casts only the result": (four_casts_result, "casting the result brings nothing back"),
        "rounds back each time": (four_rounds_back, "must not be rounded to 16 bits in between"),
        "writes into the first term": (four_in_place, "changed the terms"),
        "fp16 total": (four_half, "the total stops growing"),
        "bf16 total": (four_bfloat, "another 16-bit dtype"),
        "the mean": (four_mean, "this is the mean"),
        "n times the first": (four_times, "the first term times their number"),
        "one number for all": (four_all, "the sum has the shape (3,)"),
        "returns None": (four_none, "returned None"),
    },
    "master_sgd": {
        "keeps no fp32 copy between steps": (FiveNoCopyKept, "no float32 copy is kept between steps"),
        "plain SGD": (FivePlain, "no float32 copy is kept between steps"),
        "the master is not float32": (FiveHalfMaster, "no float32 copy is kept between steps"),
        "uses up an iterator": (FiveIterator, "used up after one pass"),
        "never writes back": (FiveNeverWritten, "the parameters never change"),
        "the parameter becomes float32": (FiveBecomesFloat, "a parameter is float32"),
        "product in 16 bits": (FiveLowProduct, "the product `lr * gradient` was computed in"),
        "goes up": (FiveAscends, "went up the gradient"),
        "no learning rate": (FiveNoRate, "the learning rate was left out"),
        "a gradient is None": (FiveNoneGradient, "has no gradient"),
        "autograd watches": (FiveWatched, "@torch.no_grad()"),
        "no step": (FiveNoStep, "with a method `step()`"),
    },
    "stochastic_rounding": {
        "rounds to nearest": (six_nearest, "rounds to nearest"),
        "cuts off": (six_cuts, "nothing is drawn"),
        "truncates negatives the wrong way": (six_truncates, "takes negative numbers towards zero"),
        "int() of negatives": (six_int, "takes negative numbers towards zero"),
        "remainder of the size": (six_remainder, "positive numbers are right and negative ones are not"),
        "one draw for all": (six_one_draw, "draw for each element"),
        "tosses a coin": (six_coin, "both neighbours are drawn alike"),
        "moves what is exact": (six_moves_exact, "its chance to move is 0"),
        "the other neighbour's chance": (six_swapped, "the chance of the other neighbour"),
        "noise, then nearest": (six_noise_and_nearest, "the noise reaches too far"),
        "normal noise": (six_normal_noise, "the noise reaches too far"),
        "noise too wide": (six_wide_noise, "the noise reaches too far"),
        "noise too narrow": (six_half_noise, "how far it is from the lower neighbour"),
        "its own draws": (six_own_draws, "twice the same generator"),
        "ignores the spacing": (six_no_spacing, "divide by the spacing"),
        "noise only": (six_only_noise, "only whole ones are numbers of the format"),
        "another shape": (six_steps, "the rounded tensor has the shape"),
    },
}

RIGHT = {
    "smallest_step": {"halves, then the next": one_right, "bisects patterns": one_right_bisects},
    "lost_fraction": {"masks": zones, "a loop": two_right_loop, "the package's": two_package},
    "safe_softmax": {
        "finfo.min and torch's softmax": three_right,
        "by hand": three_right_by_hand,
        "−inf, then where": three_right_inf,
    },
    "steady_sum": {
        "fp32 total": four_right,
        "torch.sum": four_right_torch,
        "Kahan": four_right_kahan,
        "pairwise": four_right_pairwise,
    },
    "master_sgd": {"a list of masters": FiveRight, "a dict of doubles": FiveRightDict, "the package's": MasterSGD},
    "stochastic_rounding": {
        "noise and floor": six_right,
        "compares": six_right_compares,
        "bernoulli of sizes": six_right_bernoulli,
    },
}
