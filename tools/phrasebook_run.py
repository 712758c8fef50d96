"""Run one loop of the phrasebook in this process, and write as JSON what it did.
`tools/phrasebook.py` starts one a library.

    python tools/phrasebook_run.py torch_amp fp32 bf16 fp16

Every library gets the same network (64 → 128 → 10), the same first weights and the same batches of
scikit-learn's digits, drawn by NumPy. Needs nothing of the course: the loops are in
amp_course/recipes/phrasebook/loops and are loaded by path.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import io
import itertools
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

LOOPS = Path(__file__).resolve().parent.parent / "amp_course" / "recipes" / "phrasebook" / "loops"
STEPS, BATCH, WIDTHS = 60, 32, (64, 128, 10)
DISTRIBUTIONS = {
    "torch_amp": "torch",
    "torch_cuda_amp": "torch",
    "fabric": "lightning-fabric",
    "paddle": "paddlepaddle",
}

Layers = list[
    tuple[np.ndarray, np.ndarray]
]  # (weight (outputs, inputs), bias (outputs,)) of each linear layer
Batches = list[tuple[np.ndarray, np.ndarray]]


def problem(seed: int = 0) -> tuple[Layers, Batches]:
    """Draw the first weights, and batches of digits: inputs (32, 64) float32 in [0, 1], targets
    (32,) int64.
    """
    from sklearn.datasets import load_digits

    generator = np.random.default_rng(seed)
    layers = []
    for inputs, outputs in itertools.pairwise(WIDTHS):
        bound = inputs**-0.5
        weight = generator.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
        layers.append((weight, generator.uniform(-bound, bound, outputs).astype(np.float32)))
    bunch = load_digits()
    pictures, targets = (bunch.data / 16).astype(np.float32), bunch.target.astype(np.int64)
    chosen = [generator.choice(len(targets), BATCH, replace=False) for _ in range(STEPS)]
    return layers, [(pictures[rows], targets[rows]) for rows in chosen]


def load_loop(slug: str, folder: Path = LOOPS) -> ModuleType:
    """Import the loop of a library by its path, so that no folder has to be on Python's path."""
    path = folder / f"{slug}_loop.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_problem(dtypes: set[str]) -> tuple[Any, list[Any]]:
    """Build the network and the batches in PyTorch; `dtypes` collects what the first layer gives,
    as "bfloat16".
    """
    import torch
    from torch import nn

    layers, batches = problem()
    model = nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.ReLU(), nn.Linear(*WIDTHS[1:]))
    with torch.no_grad():
        for layer, (weight, bias) in zip(model[::2], layers, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    model[0].register_forward_hook(
        lambda module, inputs, output: dtypes.add(str(output.dtype).removeprefix("torch."))
    )
    return model, [
        (torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in batches
    ]


def paddle_problem(dtypes: set[str]) -> tuple[Any, list[Any]]:
    """Build the same in Paddle, whose linear layers keep their weight as (inputs, outputs)."""
    import paddle
    from paddle import nn

    paddle.set_device("cpu")
    layers, batches = problem()
    model = nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.ReLU(), nn.Linear(*WIDTHS[1:]))
    for place, (weight, bias) in zip((0, 2), layers, strict=True):
        model[place].weight.set_value(np.ascontiguousarray(weight.T))
        model[place].bias.set_value(bias)
    model[0].register_forward_post_hook(
        lambda layer, inputs, output: dtypes.add(str(output.dtype).split(".")[-1])
    )
    return model, [
        (paddle.to_tensor(inputs), paddle.to_tensor(targets)) for inputs, targets in batches
    ]


def run(slug: str, setting: str) -> dict[str, Any]:
    """Run a loop once. setting: "bf16", or with Paddle's level, "bf16 O2".

    Returns the losses, the dtypes that the first layer gave in the forward passes, what the library
    said about precision, and the exception instead if it refused.
    """
    loop, dtypes = load_loop(slug), set[str]()
    build: Callable[[set[str]], tuple[Any, list[Any]]] = (
        paddle_problem if slug == "paddle" else torch_problem
    )
    model, batches = build(dtypes)
    if slug == "accelerate":
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(
            reset_partial_state=True
        )  # its precision is the process's: a second run needs a new one
    found: dict[str, Any] = {"setting": setting, "losses": [], "refused": ""}
    said = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        warnings.simplefilter("always")
        try:
            found["losses"] = loop.train(model, batches, *setting.split())
        except (ValueError, RuntimeError) as error:
            found["refused"] = f"{type(error).__name__}: {error}"
    about = ("amp", "precision", "autocast", "scaler", "16")
    messages = dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught)
    found["said"] = [
        message for message in messages if any(word in message.lower() for word in about)
    ]
    found["dtypes"] = sorted(dtypes)
    return found


def missing(names: list[str]) -> list[str]:
    """Return those of the dotted names that the installed library does not have:
    ["torch.amp.autocat"] → the same.
    """
    return [name for name in names if not _resolves(name.split("."))]


def _resolves(parts: list[str]) -> bool:
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def main(arguments: list[str]) -> None:
    """Run the loop `arguments[0]` in each of the other settings,
    look for the names after "--names", print one line of JSON.
    """
    slug, *rest = arguments
    names = rest[rest.index("--names") + 1 :] if "--names" in rest else []
    settings = rest[: rest.index("--names")] if "--names" in rest else rest
    runs = [run(slug, setting) for setting in settings]
    version = importlib.metadata.version(DISTRIBUTIONS.get(slug, slug)).partition("+")[0]
    report = {"version": version, "runs": runs, "missing": missing(names)}
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
