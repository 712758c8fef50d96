"""Wrong calls of `audit`, as readers make them, and what it should say. A few only look wrong, and have to be taken.

    bad.call(audit)    calls it wrongly
    bad.natural        what it may do then: raise TypeError or ValueError ("error"), report a "finding", say in the report what
                       was "not judged", or nothing of all that, because the call is "fine"; any of those named. "interrupt":
                       KeyboardInterrupt has to come out of it
    bad.words          regular expressions; the message, or the report, has to match each (`says`); nothing is asked of "fine"
    bad.seconds        it has to be done by then; what hangs here ends by itself after `PATIENCE` seconds

The docstring of each, or a comment, says what a good message tells the reader. An error from deep inside, such as AttributeError:
'NoneType' object has no attribute 'parameters', is no good message, even where its words happen to match.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import itertools
import queue
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Audit = Callable[..., Any]

ERROR, FINDING, NOT_JUDGED, FINE = "error", "finding", "not judged", "fine"
ANY = (ERROR, FINDING, NOT_JUDGED)

PATIENCE = 90.0  # seconds; a test may make it shorter
ENOUGH = 100_000  # batches: more than any audit needs


class NobodyStopped(BaseException):
    """What should have been stopped went on to its end. Not an Exception: no auditor takes it for the step's own."""


@dataclass(frozen=True)
class BadInput:
    name: str
    call: Callable[[Audit], Any]
    words: tuple[str, ...] = ()
    natural: tuple[str, ...] = ANY
    seconds: float = 20.0


BAD_INPUTS: list[BadInput] = []


def bad(
    name: str, *words: str, natural: tuple[str, ...] = ANY, seconds: float = 20.0
) -> Callable[[Callable[[Audit], Any]], Callable[[Audit], Any]]:
    def put(call: Callable[[Audit], Any]) -> Callable[[Audit], Any]:
        BAD_INPUTS.append(BadInput(name, call, words, natural, seconds))
        return call

    return put


def says(text: str, words: tuple[str, ...]) -> bool:
    """Whether a message has all that it needs."""
    return all(re.search(word, text, re.IGNORECASE) for word in words)


# ------------------------------------------------------------------------------------------------------ a sound call


def some_batches(number: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    to_class = torch.randn(6, 3, generator=generator)
    inputs = [torch.randn(8, 6, generator=generator) for _ in range(number)]
    return [(x, (x @ to_class).argmax(1)) for x in inputs]


def parts(model: nn.Module | None = None) -> SimpleNamespace:
    """A sound step, and the other arguments of a sound call. One thing of it is made wrong in each case."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    return SimpleNamespace(step=step, model=model, optimizer=optimizer, scaler=scaler, arguments=arguments)


def with_changed(audit: Audit, **changed: Any) -> Any:
    """The sound call with other arguments."""
    p = parts()
    return audit(p.step, **(p.arguments | changed))


def with_step(audit: Audit, make_step: Callable[[SimpleNamespace], Any], **changed: Any) -> Any:
    """The sound call with another step, made from the parts of the sound one."""
    p = parts()
    return audit(make_step(p), **(p.arguments | changed))


def wait_for_ever() -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(0.02)
    raise NobodyStopped


def ticks() -> Iterator[int]:
    """1, 2, 3, …: a generator, so that nobody can put it back."""
    n = 0
    while True:
        yield (n := n + 1)


# ------------------------------------------------------------------------------------------------------ the step


@bad("step=None", "train_step|step", "callable|function|None", natural=(ERROR,))
def step_none(audit: Audit) -> Any:
    """train_step has to be a function that takes a batch, not None."""
    return with_step(audit, lambda p: None)


@bad("the step called already: audit(step(x, y), ...)", "train_step|step", "callable|function|float", natural=(ERROR,))
def step_called(audit: Audit) -> Any:
    """Pass the function itself, `step`, not what it returns (a float)."""
    return with_step(audit, lambda p: p.step(*p.arguments["batches"][0]))


@bad("the trainer's class instead of a method", "class|instance|backward|argument|step-raises")
def step_class(audit: Audit) -> Any:
    """Trainer is a class: pass the method of an instance, `Trainer(...).training_step`."""

    def make(p: SimpleNamespace) -> Any:
        class Trainer:
            def __init__(self, model: Any, optimizer: Any) -> None:
                self.model, self.optimizer = model, optimizer

            def training_step(self, x: Tensor, y: Tensor) -> float:
                return p.step(x, y)

        return Trainer

    return with_step(audit, make)


@bad("a coroutine function", "async|coroutine|await|backward")
def step_coroutine(audit: Audit) -> Any:
    """The step is an `async def`: called, it only makes a coroutine, and nothing runs. (Nor may "never awaited" be warned of.)"""

    def make(p: SimpleNamespace) -> Any:
        async def step(x: Tensor, y: Tensor) -> float:
            await asyncio.sleep(0)
            return p.step(x, y)

        return step

    return with_step(audit, make)


@bad("a generator function", "generator|yield|backward")
def step_generator(audit: Audit) -> Any:
    """The step has a `yield`: called, it only makes a generator, and nothing runs."""

    def make(p: SimpleNamespace) -> Any:
        def step(x: Tensor, y: Tensor) -> Iterator[float]:
            yield p.step(x, y)

        return step

    return with_step(audit, make)


@bad("what makes the step, instead of the step", "backward|returns|function", natural=(FINDING, ERROR))
def step_factory(audit: Audit) -> Any:
    """No backward pass happened in the step (no-backward); it returned a function: is that the step?"""

    def make(p: SimpleNamespace) -> Any:
        def make_step(*settings: Any) -> Any:
            return p.step

        return make_step

    return with_step(audit, make)


@bad("the model as the step", "model|backward|argument", natural=(FINDING, ERROR))
def step_is_model(audit: Audit) -> Any:
    """A forward pass alone: no backward (no-backward), or that the model does not take (x, y)."""
    return with_step(audit, lambda p: p.model)


@bad("a step that needs the epoch too", "epoch|argument")
def step_needs_more(audit: Audit) -> Any:
    """The step needs `epoch`, which the batches do not have: pass `lambda x, y: step(x, y, epoch)` or functools.partial."""
    return with_step(audit, lambda p: lambda x, y, epoch: p.step(x, y))


@bad("a step that takes keywords only, batches are dicts", "argument|keyword|dict", natural=(*ANY, FINE))
def step_keywords(audit: Audit) -> Any:
    """A dict is passed as one argument; this step wants `step(**batch)`. To pass it so would be fine too."""
    batches = [{"x": x, "y": y} for x, y in some_batches()]
    return with_step(audit, lambda p: lambda **batch: p.step(batch["x"], batch["y"]), batches=batches)


@bad("__signature__ that is not true", "argument|signature|last|epoch", natural=(*ANY, FINE))
def step_signature(audit: Audit) -> Any:
    """It claims to take `last` and need `epoch`, and takes neither."""

    def make(p: SimpleNamespace) -> Any:
        def step(x: Tensor, y: Tensor) -> float:
            return p.step(x, y)

        def pretended(x: Tensor, y: Tensor, epoch: int, last: bool) -> float:
            raise AssertionError("never called")

        step.__signature__ = inspect.signature(pretended)
        return step

    return with_step(audit, make)


@bad("a step that changes its own default arguments", natural=(FINE,))
def step_defaults(audit: Audit) -> Any:
    """Nothing is wrong: a counter in `__defaults__`. It has to be put back."""

    def make(p: SimpleNamespace) -> Any:
        def step(x: Tensor, y: Tensor, calls: int = 0) -> float:
            step.__defaults__ = (calls + 1,)
            return p.step(x, y)

        return step

    p = parts()
    step = make(p)
    told = audit(step, **p.arguments)
    assert step.__defaults__ == (0,), "the default arguments were not put back"
    return told


@bad("a step that never returns", "second|time|return|long", seconds=60)
def step_hangs(audit: Audit) -> Any:
    """The step did not come back within so many seconds; where it stood (a line of it) would help."""

    def make(p: SimpleNamespace) -> Any:
        def step(x: Tensor, y: Tensor) -> None:
            p.step(x, y)
            wait_for_ever()

        return step

    return with_step(audit, make)


@bad("a step that waits for a queue", "second|time|return|long", seconds=60)
def step_waits(audit: Audit) -> Any:
    """It gets its batches from a worker that died. It waits in a lock, where no exception reaches it but by a signal."""

    def make(p: SimpleNamespace) -> Any:
        from_worker: queue.Queue[Any] = queue.Queue()

        def step(x: Tensor, y: Tensor) -> float:
            try:
                return p.step(*from_worker.get(timeout=PATIENCE))
            except queue.Empty:
                raise NobodyStopped from None

        return step

    return with_step(audit, make)


@bad("a step that calls audit", "audit|itself|recurs|step-raises", natural=(*ANY, FINE))
def step_calls_audit(audit: Audit) -> Any:
    """The step audits itself: one audit at a time. (To let it is fine, if it comes to an end.)"""
    p, depth = parts(), ticks()

    def step(x: Tensor, y: Tensor) -> float:
        if next(depth) < 4:
            audit(step, **p.arguments)
        return p.step(x, y)

    return audit(step, **p.arguments)


@bad("a step that recurses without end", "recursion", natural=(FINDING, ERROR))
def step_recurses(audit: Audit) -> Any:
    """step-raises, with the RecursionError that it raised."""

    def make(p: SimpleNamespace) -> Any:
        def step(x: Tensor, y: Tensor) -> float:
            return step(x, y)

        return step

    return with_step(audit, make)


@bad("a step under torch.no_grad", "grad|backward|step-raises", natural=(FINDING, ERROR))
def step_no_grad(audit: Audit) -> Any:
    """step-raises: the loss does not require grad; the step runs under torch.no_grad()."""
    return with_step(audit, lambda p: torch.no_grad()(p.step))


@bad("Ctrl-C during the audit", natural=("interrupt",))
def interrupted(audit: Audit) -> Any:
    """KeyboardInterrupt passes through, no finding is made of it, and all is as it was."""
    p, calls = parts(), ticks()

    def step(x: Tensor, y: Tensor) -> float:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return p.step(x, y)

    before = copy.deepcopy(p.model.state_dict())
    try:
        return audit(step, **p.arguments)
    finally:
        assert all(torch.equal(before[name], now) for name, now in p.model.state_dict().items()), (
            "the weights were not put back"
        )


@bad("Ctrl-C twice, in the step and while it is put back", natural=("interrupt",))
def interrupted_twice(audit: Audit) -> Any:
    """The second one waits until everything is back."""
    p, calls = parts(), ticks()

    class Slow(list):  # what a snapshot empties and fills again
        def __eq__(self, other: object) -> bool:
            if armed:
                signal.raise_signal(signal.SIGINT)
            return list.__eq__(self, other)

        __hash__ = None

    kept, armed = Slow([1, 2]), False

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal armed
        kept.append(3)
        if next(calls) == 3:
            armed = True
            raise KeyboardInterrupt
        return p.step(x, y)

    before = copy.deepcopy(p.model.state_dict())
    try:
        return audit(step, **p.arguments)
    finally:
        armed = False
        assert list(kept) == [1, 2], "the list was not put back"
        assert all(torch.equal(before[name], now) for name, now in p.model.state_dict().items())


@bad("a step that changes its own signature", natural=(*ANY, FINE))
def signature_changes(audit: Audit) -> Any:
    """From the second call on it seems to take `epoch` as well."""

    def make(p: SimpleNamespace) -> Any:
        def step(x: Tensor, y: Tensor, *more: Any) -> float:
            step.__signature__ = inspect.signature(lambda x, y, epoch: None)
            return p.step(x, y)

        return step

    return with_step(audit, make)


@bad("a model that cannot be copied", natural=(FINE,))
def model_not_copied(audit: Audit) -> Any:
    class Alone(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("there is only one of me")

        __copy__ = __reduce_ex__ = __deepcopy__

    p = parts(Alone(6, 3))
    return audit(p.step, **p.arguments)


@bad("a step that swallows its exceptions", "step-raises.*catches.*no such key", natural=(FINDING,))
def exceptions_swallowed(audit: Audit) -> Any:
    def make(p: SimpleNamespace) -> Any:
        def step(x: Tensor, y: Tensor) -> None:
            try:
                raise KeyError("no such key")
                p.step(x, y)
            except Exception:
                pass

        return step

    return with_step(audit, make)


# ------------------------------------------------------------------------------------------------------ the arguments' kinds


NO_MODELS = {
    "the model's class": lambda: nn.Linear,
    "model.parameters()": lambda: nn.Linear(6, 3).parameters(),
    "a state dict": lambda: nn.Linear(6, 3).state_dict(),
    "a function": lambda: lambda x: x,
    "a file's name": lambda: "model.pt",
    "None": lambda: None,
    "an empty list": lambda: [],
    "a list with None": lambda: [nn.Linear(6, 3), None],
    "a dict of models": lambda: {"net": nn.Linear(6, 3)},
}
for what, it in NO_MODELS.items():
    # model has to be an nn.Module or a list of them; which kind was passed instead
    taken = (*ANY, FINE) if "dict of" in what else ANY
    bad(f"model is {what}", "model", natural=taken)(lambda audit, it=it: with_changed(audit, model=it()))

NO_OPTIMIZERS = {
    "the optimizer's class": lambda: torch.optim.SGD,
    "a partial": lambda: functools.partial(torch.optim.SGD, lr=0.1),
    "None": lambda: None,
    "its name": lambda: "adamw",
    "an empty list": lambda: [],
    "a scheduler": lambda: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(6, 3).parameters(), lr=0.1), 5),
}
for what, it in NO_OPTIMIZERS.items():
    # optimizer has to be a torch.optim.Optimizer or a list of them; which kind was passed instead
    bad(f"optimizer is {what}", "optimizer")(lambda audit, it=it: with_changed(audit, optimizer=it()))

NO_SCALERS = {
    "True": lambda: True,
    "GradScaler's class": lambda: torch.amp.GradScaler,
    "an autocast": lambda: torch.autocast("cpu", dtype=torch.float16),
    "a number, the scale": lambda: 2.0**16,
    "a state dict": lambda: torch.amp.GradScaler("cpu").state_dict(),
    "a list of two": lambda: [torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")],
}
for what, it in NO_SCALERS.items():
    # scaler has to be a torch.amp.GradScaler; which kind was passed instead
    bad(f"scaler is {what}", "scaler")(lambda audit, it=it: with_changed(audit, scaler=it()))

NO_SCHEDULERS = {
    "a function of the step number": lambda: lambda step: 0.9**step,
    "its name": lambda: "cosine",
    "a learning rate": lambda: 1e-3,
    "a scheduler's class": lambda: torch.optim.lr_scheduler.StepLR,
    "a list with None": lambda: [None],
}
for what, it in NO_SCHEDULERS.items():
    # scheduler needs a method step(): which kind was passed instead
    bad(f"scheduler is {what}", "scheduler")(lambda audit, it=it: with_changed(audit, scheduler=it()))


@bad("the optimizer as the scheduler", "scheduler")
def scheduler_is_optimizer(audit: Audit) -> Any:
    """scheduler is an optimizer. It too has step(), called once an update: nobody notices who does not look at its kind."""
    p = parts()
    return audit(p.step, **p.arguments, scheduler=p.optimizer)


# ------------------------------------------------------------------------------------------------------ not the step's own


@bad("a copy of the model", "model|parameters", natural=(FINDING, ERROR))
def foreign_model(audit: Audit) -> Any:
    """foreign-model: the step trains another model than the one passed; its weights do not change, and get no gradients."""
    p = parts()
    return audit(p.step, **(p.arguments | {"model": copy.deepcopy(p.model)}))


@bad("another optimizer of the same model", "optimizer", natural=(FINDING, ERROR))
def foreign_optimizer(audit: Audit) -> Any:
    """foreign-optimizer: the step does not step the one passed."""
    p = parts()
    return audit(p.step, **(p.arguments | {"optimizer": torch.optim.AdamW(p.model.parameters())}))


@bad("another scaler", "scaler", natural=(FINDING, ERROR))
def foreign_scaler(audit: Audit) -> Any:
    """foreign-scaler: the step scales with another one."""
    return with_changed(audit, scaler=torch.amp.GradScaler("cpu"))


@bad("the scaler forgotten", "scaler", natural=(*ANY, FINE))
def scaler_forgotten(audit: Audit) -> Any:
    """The step uses a GradScaler: pass it, scaler=...; without it, this and that could not be judged."""
    return with_changed(audit, scaler=None)


@bad("the optimizer passed twice", "optimizer|twice", natural=(*ANY, FINE))
def optimizer_twice(audit: Audit) -> Any:
    """optimizer=[a, a]: to take it as one is fine; `stepped-twice` would be a false alarm."""
    p = parts()
    return audit(p.step, **(p.arguments | {"optimizer": [p.optimizer, p.optimizer]}))


# ------------------------------------------------------------------------------------------------------ the model's state


@bad("a model that is frozen", "requires_grad|frozen|parameter|gradient")
def model_frozen(audit: Audit) -> Any:
    """No parameter of the model has requires_grad: nothing can be trained (frozen-optimizer), and backward() raises."""
    p = parts()
    p.model.requires_grad_(False)
    return audit(p.step, **p.arguments)


@bad("an optimizer without parameters", "optimizer|parameter")
def optimizer_empty(audit: Audit) -> Any:
    """The optimizer holds no parameters: its groups are empty. (The scaler asserts "No inf checks were recorded".)"""
    p = parts()
    p.optimizer.param_groups[0]["params"].clear()
    return audit(p.step, **p.arguments)


@bad("a model on the meta device", "meta|device")
def model_meta(audit: Audit) -> Any:
    """The weights are on the meta device: they have no numbers, nothing can be trained or put back."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    p = parts(model)
    return audit(p.step, **p.arguments)


@bad("lazy layers without weights", "lazy|initiali[sz]ed|dry run", natural=(*ANY, FINE))
def model_lazy(audit: Audit) -> Any:
    """The model has lazy layers: run one batch through it first. Afterwards they must be lazy still, or it must have refused."""
    p = parts(nn.Sequential(nn.LazyLinear(12), nn.ReLU(), nn.LazyLinear(3)))
    return audit(p.step, **p.arguments)


@bad("fp16 weights", "fp16|float16|half", natural=(FINDING, ERROR))
def model_half(audit: Audit) -> Any:
    """fp16-parameters: GradScaler does not unscale fp16 gradients; leave the weights in fp32, autocast casts them."""
    p = parts(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).half())
    return audit(p.step, **p.arguments)


@bad("weights that are NaN already", "finite|nan", natural=(FINDING, ERROR))
def model_nan(audit: Audit) -> Any:
    """weights-not-finite: it has been trained to NaN before the audit; which parameter."""
    p = parts()
    with torch.no_grad():
        p.model[0].weight[0, 0] = float("nan")
    return audit(p.step, **p.arguments)


# ------------------------------------------------------------------------------------------------------ batches


@bad("no batches", "batch", natural=(FINDING, ERROR))
def batches_empty(audit: Audit) -> Any:
    """no-batches."""
    return with_changed(audit, batches=[])


@bad("one batch instead of a list of batches", "batch")
def one_batch(audit: Audit) -> Any:
    """The commonest mistake: batches=(x, y) makes x the first batch. Did you mean batches=[(x, y)]?"""
    return with_changed(audit, batches=some_batches()[0])


@bad("one dict instead of a list of dicts", "batch|str")
def one_dict(audit: Audit) -> Any:
    """batches={"x": ..., "y": ...} makes "x" the first batch, a str. Did you mean a list of dicts?"""
    x, y = some_batches()[0]
    return with_step(audit, lambda p: lambda batch: p.step(batch["x"], batch["y"]), batches={"x": x, "y": y})


@bad("a tensor as batches", "batch|argument")
def batches_tensor(audit: Audit) -> Any:
    """Its rows become the batches; the step takes x and y. Did you mean [(x, y)]?"""
    return with_changed(audit, batches=torch.randn(8, 6))


@bad("a batch is None", "None|batch")
def batch_none(audit: Audit) -> Any:
    """Batch 2 is None (as a collate_fn returns that drops broken examples)."""
    good = some_batches()
    return with_changed(audit, batches=[*good[:2], None, *good[2:]])


@bad("batches with a part too many", "argument|batch|takes")
def batch_long(audit: Audit) -> Any:
    """The batches have three parts, the step takes two."""
    return with_changed(audit, batches=[(x, y, i) for i, (x, y) in enumerate(some_batches())])


@bad("labels out of range in one batch only", "Target|bound|range|label", natural=(*ANY, FINE))
def labels_out_of_range_once(audit: Audit) -> Any:
    """The same, in the fifth batch: an audit that needs four does not see it."""
    batches = some_batches()
    return with_changed(audit, batches=[*batches[:4], (batches[4][0], batches[4][1] + 7), batches[5]])


@bad("inputs that are NaN", "finite|nan")
def batch_nan(audit: Audit) -> Any:
    """not-finite at every scale; and that it is in the batch already would be worth saying."""
    return with_changed(audit, batches=[(torch.full_like(x, float("nan")), y) for x, y in some_batches()])


@bad("batches without examples", "finite|nan|empty|example")
def batch_no_examples(audit: Audit) -> Any:
    """The mean over no examples is NaN: the batches are empty."""
    return with_changed(audit, batches=[(x[:0], y[:0]) for x, y in some_batches()])


@bad("dicts that lack a key", "labels|KeyError")
def dict_lacks_key(audit: Audit) -> Any:
    """step-raises: KeyError: 'labels'."""
    batches = [{"x": x, "y": y} for x, y in some_batches()]
    return with_step(audit, lambda p: lambda batch: p.step(batch["x"], batch["labels"]), batches=batches)


@bad("a DataLoader", natural=(FINE,))
def data_loader(audit: Audit) -> Any:
    """Nothing is wrong. Its batches are lists, not tuples."""
    x, y = (torch.cat(each) for each in zip(*some_batches(), strict=True))
    return with_changed(audit, batches=DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True))


@bad("a generator that ends within a group", "batch|accumulate")
def ends_early(audit: Audit) -> Any:
    """Three batches are not enough for a group of `accumulate=4`."""
    return with_changed(audit, batches=(batch for batch in some_batches(3)), accumulate=4)


class Cycle(itertools.cycle):
    """itertools.cycle that notices when somebody wants all of it."""

    taken = 0

    def __next__(self) -> Any:
        self.taken += 1
        if self.taken > ENOUGH:
            raise NobodyStopped
        return super().__next__()


@bad("itertools.cycle", natural=(FINE,))
def cycle(audit: Audit) -> Any:
    """Nothing is wrong: take what is needed."""
    return with_changed(audit, batches=Cycle(some_batches()))


@bad("an iterator that raises", "corrupt")
def iterator_raises(audit: Audit) -> Any:
    """batches raised OSError: shard 3 is corrupt. (It is not the step that raises.)"""

    def stream() -> Iterator[Any]:
        yield from some_batches(1)
        raise OSError("shard 3 is corrupt")

    return with_changed(audit, batches=stream())


@bad("an iterator that blocks", "batch|second|time", seconds=60)
def iterator_blocks(audit: Audit) -> Any:
    """The next batch did not come within so many seconds."""

    def stream() -> Iterator[Any]:
        yield from some_batches(1)
        wait_for_ever()

    return with_changed(audit, batches=stream())


@bad("an iterator that yields nothing new, and a length that lies", "batch", natural=(*ANY, FINE))
def length_lies(audit: Audit) -> Any:
    """len() says 1000, two batches come; an error of len() or of an index may not get out."""

    class Loader:
        def __len__(self) -> int:
            return 1000

        def __iter__(self) -> Iterator[Any]:
            return iter(some_batches(2))

    return with_changed(audit, batches=Loader(), accumulate=4)


# ------------------------------------------------------------------------------------------------------ the loss


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def loss_raises(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    raise ValueError("no such label: 17")


def loss_of_each(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def loss_trains(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(0.1 * p.grad)
    return loss


ELSEWHERE = nn.Linear(6, 3)

# name: (the loss, words, what is natural); the comment is what it should say
BAD_LOSSES: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    # loss(model, *batch) raised ValueError: no such label: 17
    "raises": (loss_raises, ("loss", "no such label"), ANY),
    # it returned None: is a `return` missing?
    "returns None": (lambda model, x, y: None, ("loss", "None"), ANY),
    # it returned a tensor of shape (8,): it has to be one number, the mean over the examples
    "is not one number": (loss_of_each, ("loss", "shape|scalar|number|mean"), ANY),
    # the loss of batch 0 is NaN in fp32
    "is NaN": (lambda model, x, y: F.cross_entropy(model(x) * float("nan"), y), ("loss|fp32", "nan|finite"), ANY),
    # it returned a float: return the tensor, without .item()
    "is a float": (lambda model, x, y: F.cross_entropy(model(x), y).item(), ("loss", "float|tensor"), ANY),
    # it does not depend on the parameters: detach() or no_grad() in it?
    "is detached": (lambda model, x, y: F.cross_entropy(model(x), y).detach(), ("loss", "grad|detach|depend"), ANY),
    # it is called as loss(model, x, y), and takes (x, y)
    "takes only the batch": (lambda x, y: F.mse_loss(x, x), ("loss", "argument|model"), ANY),
    # the same; it takes (outputs, targets): write a function loss(model, x, y)
    "is nn.CrossEntropyLoss()": (nn.CrossEntropyLoss(), ("loss", "argument|model"), ANY),
    # the same, and it is a class
    "is nn.CrossEntropyLoss": (nn.CrossEntropyLoss, ("loss",), ANY),
    # it needs `epoch`, which the batches do not have
    "needs more": (lambda model, x, y, epoch: cross_entropy(model, x, y), ("loss", "argument|epoch"), ANY),
    # loss has to be a function, not a str
    "is a string": ("cross_entropy", ("loss",), (ERROR, FINDING)),
    # loss has to be a function, not a Tensor: loss(model, *batch), not its result
    "is a tensor": (torch.tensor(1.0, requires_grad=True), ("loss",), (ERROR, FINDING)),
    # the second loss is None
    "is a tuple with None": ((cross_entropy, None), ("loss",), (ERROR, FINDING)),
    # no loss in it
    "is an empty tuple": ((), ("loss",), (ERROR, FINDING, FINE)),
    # it has integers for a loss, argmax has no gradient
    "counts mistakes": (lambda model, x, y: (model(x).argmax(1) != y).sum(), ("loss", "grad|float|integer|dtype"), ANY),
    # its gradient does not reach the model: it runs another one
    "is another model's": (lambda model, x, y: F.cross_entropy(ELSEWHERE(x), y), ("loss|gradient",), ANY),
    # the loss is another one than the step's: the gradients differ (gradient-differs)
    "is another loss": (
        lambda model, x, y: 3 * cross_entropy(model, x, y),
        ("gradient|loss|factor",),
        (FINDING, ERROR),
    ),
    # it trains: loss(model, ...) has only to compute. What it changed is put back
    "trains the model": (loss_trains, ("loss|gradient|backward",), (*ANY, FINE)),
    # it does not return within so many seconds
    "hangs": (lambda model, x, y: wait_for_ever(), ("second|time|return|long",), ANY),
}
for what, (it, words, natural) in BAD_LOSSES.items():
    seconds = 60.0 if what == "hangs" else 20.0
    bad(f"the loss {what}", *words, natural=natural, seconds=seconds)(lambda audit, it=it: with_changed(audit, loss=it))


# ------------------------------------------------------------------------------------------------------ numbers

# accumulate has to be a whole number from 1 on (accumulate-below-one); 2.0 and True may be taken for 2 and 1
for it in (-1, 0, 1.5, float("nan"), "2", None, [2]):
    bad(f"accumulate={it!r}", "accumulate", natural=(ERROR, FINDING))(
        lambda audit, it=it: with_changed(audit, accumulate=it)
    )
for it in (2.0, True, torch.tensor(1)):
    # where 2.0 is taken for 2, it is the step's groups that do not fit: it steps at every call (stepped-every-micro-batch)
    bad(f"accumulate={it!r}", "accumulate|micro-batch", natural=(ERROR, FINDING, FINE))(
        lambda audit, it=it: with_changed(audit, accumulate=it)
    )
# more than there are batches: not one group is whole. With 10**9 it may neither wait nor fill the memory
for it in (8, 10**9):
    bad(f"accumulate={it} of six batches", "accumulate|batch")(lambda audit, it=it: with_changed(audit, accumulate=it))

# max_norm has to be a positive number
for it in (-1.0, 0.0, float("nan"), "1.0", [1.0], 1j):
    bad(f"max_norm={it!r}", "max_norm", natural=(ERROR, FINDING))(lambda audit, it=it: with_changed(audit, max_norm=it))
# the step does not clip, and max_norm was passed (not-clipped)
bad("max_norm=0.001, nothing clips", "max_norm|clip", natural=(FINDING,))(
    lambda audit: with_changed(audit, max_norm=0.001)
)
# people measure the norm so, clip_grad_norm_(…, inf): nothing to clip
bad("max_norm=inf", "max_norm", natural=(*ANY, FINE))(lambda audit: with_changed(audit, max_norm=float("inf")))

# tolerance has to be a number from 0 on, finite
for it in (-0.1, float("nan"), "0.1", (0.1,), 1j):
    bad(f"tolerance={it!r}", "tolerance", natural=(ERROR, FINDING))(
        lambda audit, it=it: with_changed(audit, tolerance=it, loss=cross_entropy)
    )
# nothing would ever differ: to refuse is as good
bad("tolerance=inf", "tolerance", natural=(*ANY, FINE))(
    lambda audit: with_changed(audit, tolerance=float("inf"), loss=cross_entropy)
)
