import functools
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

LOW_OR_FP32 = (torch.float32, torch.bfloat16, torch.float16)
SHARED = {}

# --- 1. predict_dtypes ------------------------------------------------------------------------------------
P_RIGHT = {
    "mm": torch.bfloat16,
    "add": torch.float32,
    "in_place": torch.float32,
    "softmax": torch.bfloat16,
    "norm": torch.bfloat16,
    "cat": torch.float32,
    "loss": torch.float32,
    "double": torch.float64,
    "mixed": "raises",
    "integers": torch.int64,
    "island": "raises",
    "gradient": torch.float32,
}


def p(**other):
    return P_RIGHT | other


# --- 2. mini_autocast -------------------------------------------------------------------------------------
class MiniRight(TorchFunctionMode):
    def __init__(self, dtype, lower, fp32, widest):
        super().__init__()
        self.dtype, self.lower, self.fp32, self.widest = dtype, lower, fp32, widest
        self.copies = {}

    def __exit__(self, *error):
        self.copies.clear()
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        arguments = (args, kwargs or {})
        dtype = self.choose(func, arguments)
        if dtype is not None:
            arguments = self.cast_all(arguments, dtype)
        args, kwargs = arguments
        return func(*args, **kwargs)

    def choose(self, func, arguments):
        if func in self.lower:
            return self.dtype
        if func in self.fp32:
            return torch.float32
        if func in self.widest and torch.float32 in [getattr(leaf, "dtype", None) for leaf in tree_leaves(arguments)]:
            return torch.float32
        return None

    def cast_all(self, arguments, dtype):
        return tree_map(lambda value: self.cast(value, dtype), arguments)

    def castable(self, value):
        return isinstance(value, Tensor) and value.dtype in LOW_OR_FP32

    def cast(self, value, dtype):
        if not self.castable(value):
            return value
        if not (value.is_leaf and value.requires_grad and torch.is_grad_enabled()):
            return value.to(dtype)
        if value not in self.copies:
            self.copies[value] = value.to(dtype)
        return self.copies[value]


class MiniByHand(TorchFunctionMode):
    """No tree_map, no leaves: recursion, promote_types, and a cache keyed by id."""

    def __init__(self, dtype, lower, fp32, widest):
        super().__init__()
        self.low, self.lists = dtype, (lower, fp32, widest)

    def __enter__(self):
        self.kept = {}
        return super().__enter__()

    def __exit__(self, kind, value, traceback):
        self.kept = {}
        super().__exit__(kind, value, traceback)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        lower, fp32, widest = self.lists
        if func in lower:
            wanted = self.low
        elif func in fp32:
            wanted = torch.float32
        elif func in widest:
            found = list(self.dtypes([*args, *(kwargs or {}).values()]))
            wanted = functools.reduce(torch.promote_types, found) if found else None
        else:
            wanted = None
        if wanted is None or wanted == torch.float64:
            return func(*args, **(kwargs or {}))
        return func(
            *[self.to(a, wanted) for a in args], **{name: self.to(a, wanted) for name, a in (kwargs or {}).items()}
        )

    def dtypes(self, values):
        for value in values:
            if isinstance(value, (list, tuple)):
                yield from self.dtypes(value)
            elif isinstance(value, Tensor) and value.is_floating_point():
                yield value.dtype

    def to(self, value, dtype):
        if isinstance(value, (list, tuple)):
            return type(value)(self.to(part, dtype) for part in value)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == torch.float64:
            return value
        if isinstance(value, nn.Parameter) and torch.is_grad_enabled():
            if (id(value), dtype) not in self.kept:
                self.kept[id(value), dtype] = value, value.type(dtype)
            return self.kept[id(value), dtype][1]
        return value.type(dtype)


class MiniIntegersToo(MiniRight):
    def castable(self, value):
        return isinstance(value, Tensor)


class MiniDoublesToo(MiniRight):
    def castable(self, value):
        return isinstance(value, Tensor) and value.is_floating_point()


class MiniOutputsOnly(MiniRight):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch.autocast("cpu", enabled=False):
            arguments = (args, kwargs or {})
            dtype = self.choose(func, arguments)
            if dtype is None:
                return func(*args, **(kwargs or {}))
            if any(self.castable(leaf) for leaf in tree_leaves(arguments)):
                args, kwargs = tree_map(lambda v: v.float() if self.castable(v) else v, arguments)
            return self.cast(func(*args, **(kwargs or {})), dtype)


class MiniNoCache(MiniRight):
    def cast(self, value, dtype):
        return value.to(dtype) if self.castable(value) else value


class MiniCachesAll(MiniRight):
    def cast(self, value, dtype):
        if not self.castable(value) or not torch.is_grad_enabled():
            return value.to(dtype) if self.castable(value) else value
        if (value, dtype) not in self.copies:
            self.copies[value, dtype] = value.to(dtype)
        return self.copies[value, dtype]


class MiniNoGradCache(MiniRight):
    def cast(self, value, dtype):
        if self.castable(value) and value.is_leaf and value.requires_grad:
            if value not in self.copies:
                self.copies[value] = value.to(dtype)
            return self.copies[value]
        return value.to(dtype) if self.castable(value) else value


class MiniKeepsForEver(MiniRight):
    def __exit__(self, *error):
        return TorchFunctionMode.__exit__(self, *error)


class MiniSharedCache(MiniRight):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.copies = SHARED

    def __exit__(self, *error):
        return TorchFunctionMode.__exit__(self, *error)


class MiniStaysOn(MiniRight):
    def __exit__(self, kind, *error):
        self.copies.clear()
        return super().__exit__(kind, *error) if kind is None else None


class MiniNeverLeaves(MiniRight):
    def __exit__(self, *error):
        self.copies.clear()


class MiniSwallows(MiniRight):
    def __exit__(self, *error):
        super().__exit__(*error)
        return True


class MiniSwitchedOff(MiniRight):
    on = True

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not self.on:
            return func(*args, **(kwargs or {}))
        self.on = False
        result = super().__torch_function__(func, types, args, kwargs)
        self.on = True
        return result


class MiniNoKeywords(MiniRight):
    def cast_all(self, arguments, dtype):
        args, kwargs = arguments
        return tree_map(lambda value: self.cast(value, dtype), args), kwargs


class MiniFlat(MiniRight):
    def cast_all(self, arguments, dtype):
        args, kwargs = arguments
        return tuple(self.cast(value, dtype) for value in args), {n: self.cast(v, dtype) for n, v in kwargs.items()}


class MiniNoWidest(MiniRight):
    def choose(self, func, arguments):
        return None if func in self.widest else super().choose(func, arguments)


class MiniWidestLow(MiniRight):
    def choose(self, func, arguments):
        return self.dtype if func in self.widest else super().choose(func, arguments)


class MiniInPlace(MiniRight):
    def cast(self, value, dtype):
        if self.castable(value):
            value.data = value.data.to(dtype)
        return value


class MiniDetaches(MiniRight):
    def cast(self, value, dtype):
        return value.detach().to(dtype) if self.castable(value) else value


class MiniEverything(MiniRight):
    def choose(self, func, arguments):
        return super().choose(func, arguments) or (self.dtype if func in (Tensor.exp, Tensor.add) else None)


class MiniNoFp32(MiniRight):
    def choose(self, func, arguments):
        return None if func in self.fp32 else super().choose(func, arguments)


class MiniAlwaysBf16(MiniRight):
    def __init__(self, dtype, lower, fp32, widest):
        super().__init__(torch.bfloat16, lower, fp32, widest)


class MiniNothing(MiniRight):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class MiniNoReturn(MiniRight):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        super().__torch_function__(func, types, args, kwargs)


def mini_torch(dtype, lower, fp32, widest):
    return torch.autocast("cpu", dtype=dtype)


# --- 3. end_region ----------------------------------------------------------------------------------------
def region(**options):
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def learn(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def e_right(model, batches, loss_fn, optimizer):
    losses = []
    for inputs, targets in batches:
        with region():
            loss = loss_fn(model(inputs), targets)
        losses.append(learn(loss, optimizer))
    return losses


def e_decorated(model, batches, loss_fn, optimizer):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def loss_of(inputs, targets):
        return loss_fn(model(inputs), targets)

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return torch.stack([step(*batch) for batch in batches])


def e_no_cache(model, batches, loss_fn, optimizer):
    losses = []
    with region(cache_enabled=False):
        for inputs, targets in batches:
            loss = loss_fn(model(inputs), targets)
            with torch.autocast("cpu", enabled=False):
                losses.append(learn(loss, optimizer))
    return losses


def e_given(model, batches, loss_fn, optimizer):
    losses = []
    with region():
        for inputs, targets in batches:
            loss = loss_fn(model(inputs), targets)
            losses.append(learn(loss, optimizer))
    return losses


def e_backward_inside(model, batches, loss_fn, optimizer):
    return [loss for batch in batches for loss in e_given(model, [batch], loss_fn, optimizer)]


def e_stale(model, batches, loss_fn, optimizer):
    losses = []
    with region():
        for inputs, targets in batches:
            loss = loss_fn(model(inputs), targets)
            with torch.autocast("cpu", enabled=False):
                losses.append(learn(loss, optimizer))
    return losses


def e_stale_off_outside(model, batches, loss_fn, optimizer):
    with torch.autocast("cpu", enabled=False):
        return e_right(model, batches, loss_fn, optimizer)


def e_loss_outside(model, batches, loss_fn, optimizer):
    losses = []
    for inputs, targets in batches:
        with region():
            outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        losses.append(learn(loss, optimizer))
    return losses


def e_no_region(model, batches, loss_fn, optimizer):
    losses = []
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        losses.append(learn(loss, optimizer))
    return losses


def e_backward_last(model, batches, loss_fn, optimizer):
    with region():
        losses = [loss_fn(model(inputs), targets) for inputs, targets in batches]
    torch.stack(losses).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return [loss.item() for loss in losses]


def e_no_zero(model, batches, loss_fn, optimizer):
    losses = []
    for inputs, targets in batches:
        with region():
            loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def e_converts(model, batches, loss_fn, optimizer):
    return e_right(model.bfloat16(), [(x.bfloat16(), y) for x, y in batches], loss_fn, optimizer)


def e_last_loss(model, batches, loss_fn, optimizer):
    return e_right(model, batches, loss_fn, optimizer)[-1]


def e_none(model, batches, loss_fn, optimizer):
    e_right(model, batches, loss_fn, optimizer)


# --- 4. fp32_island ---------------------------------------------------------------------------------------
def off(device="cpu"):
    return torch.autocast(device, enabled=False)


def scores(x, weight):
    return (x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)) @ weight.T


def i_right(x, weight):
    with off(x.device.type):
        return scores(x.float(), weight)


@torch.autocast("cpu", enabled=False)
def i_decorated(x, weight):
    return F.linear(F.rms_norm(x.float(), x.shape[-1:], eps=1e-6), weight)


def i_elementwise(x, weight):
    x = x.float()
    x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    return (x[:, None, :] * weight).sum(dim=-1)


def i_given(x, weight):
    with off():
        return scores(x, weight)


def i_weight_down(x, weight):
    with off():
        return scores(x, weight.to(x.dtype)).float()


def i_float_only(x, weight):
    return scores(x.float(), weight)


def i_result(x, weight):
    return scores(x, weight).float()


def i_late(x, weight):
    with off():
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)
        return (x.float() * scale.float()) @ weight.T


def i_other_device(x, weight):
    with off("cuda"):
        return scores(x.float(), weight)


def i_back_down(x, weight):
    return i_right(x, weight).to(x.dtype)


def i_detached(x, weight):
    return i_right(x.detach(), weight)


def i_leaves_off(x, weight):
    torch.set_autocast_enabled("cpu", False)
    return scores(x.float(), weight)


def i_no_root(x, weight):
    with off():
        x = x.float()
        return (x / (x.square().mean(-1, keepdim=True) + 1e-6)) @ weight.T


def i_none(x, weight):
    i_right(x, weight)


# --- 5. safe_function -------------------------------------------------------------------------------------
def forward(ctx, x, c):
    ctx.save_for_backward(x, c)
    return x.square().sum(dim=1)[:, None] - 2 * x @ c.T + c.square().sum(dim=1)


def backward(ctx, grad):
    x, c = ctx.saved_tensors
    return 2 * (x * grad.sum(dim=1)[:, None] - grad @ c), 2 * (c * grad.sum(dim=0)[:, None] - grad.T @ x)


def half_backward(ctx, grad):
    return tuple(gradient / 2 for gradient in backward(ctx, grad))


def function(forward, backward):
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Distances", (torch.autograd.Function,), members)


fwd32 = torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
bwd = torch.amp.custom_bwd(device_type="cpu")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    old_fwd, old_bwd = (
        torch.cuda.amp.custom_fwd(forward, cast_inputs=torch.float32),
        torch.cuda.amp.custom_bwd(backward),
    )


class FDecorated(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, c):
        ctx.save_for_backward(x, c)
        return (x[:, None, :] - c).square().sum(dim=-1)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return backward(ctx, grad)


def f_off(ctx, x, c):
    with off():
        return forward(ctx, x.float(), c.float())


def b_off(ctx, grad):
    with off():
        return backward(ctx, grad.float())


def f_float_inside(ctx, x, c):
    return forward(ctx, x.float(), c.float())


def f_saves_low(ctx, x, c):
    result = forward(ctx, x, c)
    ctx.save_for_backward(x.bfloat16(), c.bfloat16())
    return result


def b_casts_up(ctx, grad):
    x, c = (saved.float() for saved in ctx.saved_tensors)
    return 2 * (x * grad.sum(dim=1)[:, None] - grad @ c), 2 * (c * grad.sum(dim=0)[:, None] - grad.T @ x)


def f_returns_low(ctx, x, c):
    return forward(ctx, x, c).bfloat16()


def f_saves_input(ctx, x, c):
    with off():
        result = forward(ctx, x.float(), c.float())
    ctx.save_for_backward(x, c)
    return result


# --- 6. safe_loss -----------------------------------------------------------------------------------------
def with_logits(logits, targets, **options):
    return F.binary_cross_entropy_with_logits(logits, targets, **options)


def s_right(head, features, targets):
    logits = head(features).squeeze(-1)
    return torch.sigmoid(logits), with_logits(logits, targets)


def s_module(head, features, targets):
    logits = head(features)
    loss = nn.BCEWithLogitsLoss()(logits, targets[:, None])
    return [logits.detach().float().sigmoid()[:, 0], loss]


def s_by_hand(head, features, targets):
    z = head(features).squeeze(-1).float()
    return z.sigmoid(), (F.softplus(z) - z * targets).mean()


def s_given(head, features, targets):
    probabilities = torch.sigmoid(head(features).squeeze(-1))
    return probabilities, F.binary_cross_entropy(probabilities, targets)


def s_island(head, features, targets):
    logits = head(features).squeeze(-1)
    with off():
        probabilities = torch.sigmoid(logits.float())
        return probabilities, F.binary_cross_entropy(probabilities, targets)


def s_double(head, features, targets):
    probabilities = torch.sigmoid(head(features).squeeze(-1).double())
    return probabilities, F.binary_cross_entropy(probabilities, targets.double())


def s_clamped(head, features, targets):
    p = torch.sigmoid(head(features).squeeze(-1).float()).clamp(1e-7, 1 - 1e-7)
    return p, -(targets * p.log() + (1 - targets) * (1 - p).log()).mean()


def s_twice(head, features, targets):
    probabilities = torch.sigmoid(head(features).squeeze(-1))
    return probabilities, with_logits(probabilities, targets)


def s_swapped(head, features, targets):
    logits = head(features).squeeze(-1)
    return torch.sigmoid(logits), with_logits(targets, logits)


def s_sum(head, features, targets):
    logits = head(features).squeeze(-1)
    return torch.sigmoid(logits), with_logits(logits, targets, reduction="sum")


def s_unreduced(head, features, targets):
    logits = head(features).squeeze(-1)
    return torch.sigmoid(logits), with_logits(logits, targets, reduction="none")


def s_low(head, features, targets):
    z = head(features).squeeze(-1)
    return torch.sigmoid(z), (F.softplus(z) - z * targets.to(z.dtype)).mean()


def s_returns_logits(head, features, targets):
    logits = head(features).squeeze(-1)
    return logits, with_logits(logits, targets)


def s_wrong_order(head, features, targets):
    return s_right(head, features, targets)[::-1]


def s_broadcast(head, features, targets):
    z = head(features).float()
    return torch.sigmoid(z), (F.softplus(z) - z * targets).mean()


def s_detached(head, features, targets):
    logits = head(features).squeeze(-1).detach()
    return torch.sigmoid(logits), with_logits(logits, targets)


def s_only_loss(head, features, targets):
    return s_right(head, features, targets)[1]


def s_none(head, features, targets):
    s_right(head, features, targets)


WRONG = {
    "predict_dtypes": {
        "a matmul keeps fp32": (p(mm=torch.float32), "is on autocast's lower list"),
        "addition is lowered": (p(add=torch.bfloat16), "type promotion decides"),
        "in-place takes the other's dtype": (p(in_place=torch.bfloat16), "keeps its dtype"),
        "softmax as on CUDA": (p(softmax=torch.float32), "CUDA's policy"),
        "layer_norm as on CUDA": (p(norm=torch.float32), "CUDA's policy, and the norm's weights"),
        "cat goes down": (p(cat=torch.bfloat16), "one float32 tensor makes the result float32"),
        "cat refuses": (p(cat="raises"), "cat promotes different dtypes"),
        "loss stays low": (p(loss=torch.bfloat16), "losses are on the fp32 list"),
        "doubles are lowered": (p(double=torch.bfloat16), "casts only float32 and the 16-bit formats"),
        "mixed is promoted": (p(mixed=torch.float64), "a matmul does not promote"),
        "integers are cast": (p(integers=torch.bfloat16), "floating-point tensors only"),
        "an island casts up": (p(island=torch.float32), "needs `.float()` on its input"),
        "low gradients": (p(gradient=torch.bfloat16), "float32 throughout"),
        "all bf16": (dict.fromkeys(P_RIGHT, torch.bfloat16), "3 of 12 are right"),
        "a dtype from nowhere": (p(mm=torch.float16), "neither its inputs nor autocast know that dtype"),
        "a key missing": ({"mm": torch.bfloat16}, "a dict with the keys mm, add"),
        "no dtype": (p(cat="wide"), "cat: write a dtype such as torch.float32"),
        "one place open": (p(cat=...), "still `...` for cat"),
    },
    "mini_autocast": {
        "casts integer tensors": (MiniIntegersToo, "integer tensors are ids, masks and counts"),
        "casts float64": (MiniDoublesToo, "leaves float64 alone"),
        "casts outputs only": (MiniOutputsOnly, "only the output was cast"),
        "recasts each time": (MiniNoCache, "was cast 4 times in one region"),
        "caches activations too": (MiniCachesAll, "only parameters, leaves that require grad"),
        "does not restore on exception": (MiniStaysOn, "an exception in the region leaves the mode on"),
        "never leaves": (MiniNeverLeaves, "is still on after its `with` block"),
        "switched off by an exception": (MiniSwitchedOff, "after an op failed inside the region"),
        "swallows exceptions": (MiniSwallows, "an exception in the region disappeared"),
        "cache lives past the region": (MiniKeepsForEver, "outlive their region"),
        "one cache for all": (MiniSharedCache, "outlive their region"),
        "cache made under no_grad": (MiniNoGradCache, "first used under `torch.no_grad()`"),
        "forgets keyword arguments": (MiniNoKeywords, "in keyword arguments and inside lists"),
        "forgets lists": (MiniFlat, '`torch.einsum("ij,jk->ik", [a, b])` gives float32'),
        "leaves out the widest list": (MiniNoWidest, "it is on the widest list"),
        "widest goes down": (MiniWidestLow, "it is on the widest list"),
        "changes the caller's tensor": (MiniInPlace, "the caller's own tensor was changed"),
        "detaches": (MiniDetaches, "the weight gets no gradient"),
        "casts unlisted ops": (MiniEverything, "none of the three lists"),
        "leaves out the fp32 list": (MiniNoFp32, "it is on the fp32 list"),
        "always bf16": (MiniAlwaysBf16, "in a region of float16"),
        "does nothing": (MiniNothing, "its op is on the lower list"),
        "no return": (MiniNoReturn, "return what `func` returns"),
        "torch.autocast": (mini_torch, "gave an object of type autocast"),
    },
    "end_region": {
        "as given": (e_given, "a second fault: one region spans all steps"),
        "backward inside": (e_backward_inside, "`backward()` ran inside"),
        "one region around all steps": (e_stale, "used the weights of the first"),
        "a disabled region around all steps": (e_stale_off_outside, "a region that is switched off counts"),
        "loss outside": (e_loss_outside, "outside of the autocast region"),
        "no region": (e_no_region, "ran outside of autocast"),
        "one backward for all": (e_backward_last, "`optimizer.step()` ran 1 times in 6 steps"),
        "never clears": (e_no_zero, "never cleared"),
        "converts the model": (e_converts, "parameters are bfloat16 now"),
        "only the last loss": (e_last_loss, "one number for each batch"),
        "returns None": (e_none, "returned None"),
    },
    "fp32_island": {
        "enabled=False without .float()": (i_given, "`enabled=False` is one half of an island"),
        "casts the weight down": (i_weight_down, "the weight was cast down to x"),
        ".float() without enabled=False": (i_float_only, "`.float()` alone does not keep autocast out"),
        "casts the result only": (i_result, "only its result was cast"),
        ".float() after the squares": (i_late, "before the first op of the island"),
        "another device": (i_other_device, "for the device where x is"),
        "returns 16 bits": (i_back_down, "come back as bfloat16"),
        "detaches": (i_detached, "no gradient reaches x"),
        "leaves autocast off": (i_leaves_off, "leaves autocast's state changed"),
        "forgets the root": (i_no_root, "the scores are x / sqrt(mean(x²)"),
        "returns None": (i_none, "returned None"),
    },
    "safe_function": {
        "as given": (function(forward, backward), "the matmul of forward ran in bfloat16"),
        "only custom_fwd": (function(fwd32(forward), backward), "the matmuls of backward ran in bfloat16"),
        "only custom_bwd": (function(forward, bwd(backward)), "there was no `custom_fwd`"),
        "no cast_inputs": (
            function(torch.amp.custom_fwd(forward, device_type="cpu"), bwd(backward)),
            "without `cast_inputs` leaves the region on",
        ),
        "old decorators": (function(old_fwd, old_bwd), "the old torch.cuda.amp decorators"),
        "device type cuda": (
            function(
                torch.amp.custom_fwd(forward, device_type="cuda", cast_inputs=torch.float32),
                torch.amp.custom_bwd(backward, device_type="cuda"),
            ),
            'casts for device_type="cuda"',
        ),
        "casts inside forward": (function(f_float_inside, backward), "nothing keeps autocast out of it"),
        "an island in forward alone": (function(f_off, backward), "the matmuls of backward ran in bfloat16"),
        "cast_inputs=bfloat16": (
            function(torch.amp.custom_fwd(forward, device_type="cpu", cast_inputs=torch.bfloat16), bwd(backward)),
            "which is torch.float32 here",
        ),
        "saves low copies": (function(fwd32(f_saves_low), bwd(b_casts_up)), "not a copy that was cast down"),
        "saves low copies, uncast": (function(fwd32(f_saves_low), bwd(backward)), "not copies that were cast down"),
        "saves what came in": (function(f_saves_input, b_off), "backward raises"),
        "returns bf16": (function(fwd32(f_returns_low), bwd(backward)), "come back as bfloat16"),
        "half the gradient": (function(fwd32(forward), bwd(half_backward)), "the gradient of x is off"),
        "no class": (3, "derived from torch.autograd.Function"),
    },
    "safe_loss": {
        "as given": (s_given, "sigmoid has saturated"),
        "BCELoss in an fp32 island": (s_island, "cuts at −100"),
        "BCELoss in float64": (s_double, "No wider dtype"),
        "clamped probabilities": (s_clamped, "no clamp brings it back"),
        "keeps sigmoid before with-logits": (s_twice, "is given probabilities"),
        "swaps the arguments": (s_swapped, "the arguments are swapped"),
        "reduction sum": (s_sum, "that is the sum"),
        "reduction none": (s_unreduced, "it is one number"),
        "formula in 16 bits": (s_low, "It was computed in bfloat16"),
        "logits for probabilities": (s_returns_logits, "are the logits"),
        "loss first": (s_wrong_order, "in the wrong order"),
        "a square of losses": (s_broadcast, "every logit was compared with every target"),
        "detached": (s_detached, "no gradient reaches the head"),
        "only the loss": (s_only_loss, "has to return a pair of tensors"),
        "returns None": (s_none, "returned None"),
    },
}

RIGHT = {
    "predict_dtypes": {
        "dtypes": P_RIGHT,
        "strings, any order": {name: str(dtype) for name, dtype in reversed(P_RIGHT.items())},
        "short names": p(mm="bf16", add="fp32", double="double", mixed="Raises", integers="int"),
    },
    "mini_autocast": {"tree_map": MiniRight, "recursion, promote_types, ids": MiniByHand},
    "end_region": {"a region a step": e_right, "decorator, tensors": e_decorated, "no cache": e_no_cache},
    "fp32_island": {"both halves": i_right, "decorator, rms_norm": i_decorated, "elementwise": i_elementwise},
    "safe_function": {
        "decorators": FDecorated,
        "members": function(fwd32(forward), bwd(backward)),
        "by hand": function(f_off, b_off),
        "apply": FDecorated.apply,
    },
    "safe_loss": {"with logits": s_right, "module, a column": s_module, "by hand": s_by_hand},
}
