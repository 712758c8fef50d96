"""Run torchao below 16 bits and compare it with other computations; `make test-phrasebook` runs
this in its environment.

    python tools/phrasebook_low_bit.py 0.18.0 --names torchao.optim.AdamW8bit --files
    torchao/optim/adam.py

Everything is on the CPU. An fp8 layer is compared with a rounding written here in NumPy; the MX
formats and NVFP4 with the course's `quantize`, bit for bit; the optimizers with
`torch.optim.AdamW`. Prints a line for each, and ends with 1 if one disagrees.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import phrasebook_run
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
LOOPS = ROOT / "amp_course" / "recipes" / "phrasebook" / "loops"

E4M3, E5M2 = (
    (4, -6, 448.0),
    (3, -14, 57344.0),
)  # significand bits, smallest exponent, largest number
NEAR, FAR = (
    0.1,
    0.01,
)  # of a loss: as close as 8 bits come to the end, and as far as rounding must show on the way
SIDE = 64  # of the square layer

Found = Iterator[tuple[bool, str]]  # whether it is as it should be, and what it is


def rounded(values: np.ndarray, kind: tuple[int, int, float]) -> np.ndarray:
    """Round to fp8: to nearest, ties to even, what is too large to the largest number.
    float64 in and out, exact.
    """
    bits, smallest, largest = kind
    exponents = np.maximum(np.frexp(values)[1] - 1, smallest)
    steps = np.ldexp(1.0, exponents - (bits - 1))
    return np.clip(np.rint(values / steps) * steps, -largest, largest)


def through_fp8(values: np.ndarray, kind: tuple[int, int, float], by_row: bool) -> np.ndarray:
    """Return what is left of float32 values: scaled up to the largest number in fp32, rounded,
    scaled back in fp32.

    by_row: a scale for each row, a power of two; else one for all
    """
    amax = np.abs(values).max(axis=1, keepdims=True) if by_row else np.abs(values).max()
    scale = (kind[2] / amax.astype(np.float64)).astype(np.float32)
    if by_row:
        scale = np.ldexp(np.float32(1), np.frexp(scale)[1] - 1)
    return rounded((values * scale).astype(np.float64), kind).astype(np.float32) / scale


def layers() -> Found:
    """Compare torchao's layer. Its weight is the identity, so that its output is its input,
    and shows how that was rounded.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(SIDE, SIDE)).astype(np.float32) * np.exp2(
        generator.integers(-6, 6, (SIDE, 1))
    )
    gradients = generator.normal(size=(SIDE, SIDE)).astype(np.float32) * 1e-4
    inputs = inputs.astype(np.float32)
    for recipe, backward in (("tensorwise", E5M2), ("rowwise", E4M3), ("rowwise_with_gw_hp", E4M3)):
        layer = nn.Linear(SIDE, SIDE, bias=False)
        nn.init.eye_(layer.weight)
        config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
        layer = convert_to_float8_training(layer, config=config)
        given = torch.from_numpy(inputs).requires_grad_()
        output = layer(given)
        output.backward(torch.from_numpy(gradients))
        rows, kept = recipe != "tensorwise", recipe == "rowwise_with_gw_hp"
        x, dy = through_fp8(inputs, E4M3, rows), through_fp8(gradients, backward, rows)
        # For the weight's gradient the sum is over the batch, so rows are the columns of both.
        xt = inputs if kept else through_fp8(inputs.T.copy(), E4M3, rows).T
        dyt = gradients if kept else through_fp8(gradients.T.copy(), backward, rows).T
        wanted = dyt.T.astype(np.float64) @ xt
        error = np.abs(layer.weight.grad.numpy() - wanted).max() / np.abs(wanted).max()
        plain = (
            np.abs(gradients.T.astype(np.float64) @ inputs - wanted).max() / np.abs(wanted).max()
        )
        same = np.array_equal(output.detach().numpy(), x) and np.array_equal(given.grad.numpy(), dy)
        names = "E4M3 and E5M2" if backward is E5M2 else "E4M3"
        right = same and error < 1e-6 and (kept or plain > 1e-3)
        yield (
            right,
            f"{recipe}: input and gradient in {names}, exactly; weight gradient {error:.1g} apart",
        )


def identical(one: Tensor, other: Tensor) -> bool:
    """Return True if two float32 tensors have the same bits, the signs of zeros included."""
    return torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))


def formats() -> Found:
    """Compare what becomes of one tensor in each format and with each rounding of the scale."""
    from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
    from torchao.prototype.mx_formats.mx_tensor import (
        ScaleCalculationMode,
        get_fp_scale,
        to_dtype,
        to_mx,
    )
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    from amp_course.frontiers import (
        MXFP4,
        MXFP6_E2M3,
        MXFP6_E3M2,
        MXFP8_E4M3,
        MXFP8_E5M2,
        NVFP4,
        blocks_of,
        quantize,
    )

    generator = torch.Generator().manual_seed(0)
    spread = torch.exp2(torch.randint(-20, 20, (2048, 1), generator=generator).float())
    tensor = torch.randn(2048, 64, generator=generator) * spread
    tensor[:40, 0] = 448 * torch.exp2(torch.arange(-20, 20).float())  # amax at the edge
    tensor[40, :32] = 0
    elements: dict[Any, Any] = {
        MXFP8_E4M3: torch.float8_e4m3fn,
        MXFP8_E5M2: torch.float8_e5m2,
        MXFP6_E2M3: "fp6_e2m3",
        MXFP6_E3M2: "fp6_e3m2",
        MXFP4: torch.float4_e2m1fn_x2,
    }
    for mode, rounding in (("FLOOR", "down"), ("EVEN", "nearest"), ("RCEIL", "up")):
        for kind, element in elements.items():
            ours = kind.rounding_scale(rounding)
            scales, stored = to_mx(tensor, element, 32, ScaleCalculationMode[mode])
            theirs = to_dtype(stored, scales, element, 32, torch.float32)
            same = identical(theirs, quantize(tensor, ours))
            same = same and torch.equal(get_fp_scale(scales), blocks_of(tensor, ours).scales)
            yield (
                same,
                f"{kind.name} with {mode}: scales and numbers as the course's “{rounding}”, bit "
                f"for bit",
            )
    scales, _ = to_mx(tensor, torch.float8_e4m3fn, 32, ScaleCalculationMode.CEIL)
    significand, exponents = np.frexp(tensor.view(2048, 2, 32).abs().amax(-1).numpy())
    wanted = np.where(
        significand > 0, np.ldexp(1.0, exponents - (significand == 0.5) - 8), 2.0**-127
    )
    further = float(
        (get_fp_scale(scales) > blocks_of(tensor, MXFP8_E4M3.rounding_scale("up")).scales)
        .float()
        .mean()
    )
    same = np.array_equal(get_fp_scale(scales).numpy(), wanted)
    yield (
        same and further > 0,
        f"CEIL rounds the amax up: {further:.0%} of MXFP8's scales are twice those of RCEIL",
    )
    hair = torch.zeros(60, 32)
    hair[:, 0] = torch.nextafter(
        448 * torch.exp2(torch.arange(-30, 30).float()), torch.tensor(torch.inf)
    )
    scales, _ = to_mx(hair, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    low = int(
        (get_fp_scale(scales) < blocks_of(hair, MXFP8_E4M3.rounding_scale("up")).scales).sum()
    )
    yield (
        True,
        f"RCEIL is not exact on a CPU: its log2 is rounded, so {low} of 60 scales a hair above "
        f"448·2^k are half of it",
    )
    whole = per_tensor_amax_to_scale(tensor.abs().max())
    scales, stored = nvfp4_quantize(tensor, 16, whole)
    numbers, ours = (
        f4_unpacked_to_f32(unpack_uint4(stored)).view(2048, 4, 16),
        blocks_of(tensor, NVFP4),
    )
    wanted_scales = (ours.scales / ours.tensor_scale).float()
    normal = wanted_scales >= torch.finfo(torch.float8_e4m3fn).tiny
    same = identical(numbers[normal], ours.elements.float()[normal])
    same = same and identical(scales.float().view(2048, 4)[normal], wanted_scales[normal])
    same = same and float(whole) == ours.tensor_scale and 0.1 < float(normal.float().mean()) < 0.9
    yield (
        same,
        "NVFP4: scales and elements as the course's where a scale is a normal E4M3 number; "
        "torchao's go no lower",
    )


def state_bytes(state: Tensor) -> int:
    """Return the bytes of a moment, of a torchao tensor those of what it is made of."""
    if not hasattr(state, "tensor_attrs"):
        return state.nbytes
    return sum(getattr(state, name).nbytes for name in state.tensor_attrs)


def fit(make: Callable[..., torch.optim.Optimizer]) -> tuple[list[float], int]:
    """Train the phrasebook's network in fp32; return its losses,
    and the bytes of both moments of its 128 × 64 weight.
    """
    model, batches = phrasebook_run.torch_problem(set())
    optimizer = make(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    state = optimizer.state[model[0].weight]
    return losses, state_bytes(state["exp_avg"]) + state_bytes(state["exp_avg_sq"])


def optimizers() -> Found:
    """Compare torchao's optimizers: the first step is AdamW's, for it rounds what it keeps;
    then they part, and end close.
    """
    import torchao.optim

    reference, whole = fit(torch.optim.AdamW)
    count = 64 * 128
    yield (
        whole == 8 * count,
        f"torch.optim.AdamW: {whole:,} bytes of state, last loss {reference[-1]:.3f}",
    )
    wanted = {
        "AdamW8bit": 2 * (count + count // 256 * 4 + 256 * 4),  # codes, scales, a table of levels
        "AdamWFp8": 2 * (count + count // 256 * 4),
        "AdamW4bit": 2 * (count // 2 + count // 128 * 4 + 16 * 4),
    }
    for name, size in wanted.items():
        losses, found = fit(getattr(torchao.optim, name))
        apart = [abs(a - b) / b for a, b in zip(losses, reference, strict=True)]
        right = (
            found == size
            and max(apart[:2]) < 1e-5
            and max(apart) > 1e-4
            and losses[-1] < reference[-1] * (1 + NEAR)
        )
        yield (
            right,
            f"{name}: {found:,} bytes of state, last loss {losses[-1]:.3f}, at most "
            f"{max(apart):.1%} apart",
        )


def loops() -> Found:
    """Run the loop that readers see, with each recipe:
    it learns as fp32 does, and its losses show that it was not fp32.
    """
    reference, _ = fit(torch.optim.AdamW)
    for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
        model, batches = phrasebook_run.torch_problem(set())
        losses = phrasebook_run.load_loop("torchao", LOOPS).train(model, batches, recipe)
        apart = max(abs(a - b) / b for a, b in zip(losses, reference, strict=True))
        right = (
            losses[-1] < reference[-1] * (1 + NEAR) and apart > FAR and losses[0] != reference[0]
        )
        kinds = "+".join(type(layer).__name__ for layer in model if not isinstance(layer, nn.ReLU))
        right = right and kinds == "Float8Linear+Linear"
        yield right, f"loop, {recipe}: last loss {losses[-1]:.3f}; fp32 {reference[-1]:.3f}"


def described(version: str, names: list[str], files: list[str]) -> Found:
    """Look whether the version is the one described, with the names that are used and the files
    that are cited.
    """
    found = metadata.version("torchao").partition("+")[0]
    yield found == version, f"version {found}; the phrasebook describes {version}"
    package = Path(str(metadata.distribution("torchao").locate_file("")))
    gone = phrasebook_run.missing(names) + [
        file for file in files if not (package / file).is_file()
    ]
    yield (
        not gone,
        f"{len(names)} names and {len(files)} files, missing: {', '.join(gone) or 'none'}",
    )


def main(arguments: list[str]) -> int:
    """Run all; return 1 if anything is not as it should be."""
    os.environ["TORCHDYNAMO_DISABLE"] = (
        "1"  # torchao compiles its optimizers' step, for which it would need a C++ compiler
    )
    sys.path.insert(0, str(ROOT))  # for the course's `quantize`
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    version, *rest = arguments
    names = rest[rest.index("--names") + 1 : rest.index("--files")]
    files = rest[rest.index("--files") + 1 :]
    wrong = 0
    for found in (described(version, names, files), layers(), formats(), optimizers(), loops()):
        for right, words in found:
            wrong += not right
            print(f"{'' if right else 'WRONG: '}torchao, {words}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
