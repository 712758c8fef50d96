"""Right loops in every dtype and on other data, and what an audit reads and puts back."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_course.audit import Report, audit
from tests.audit import parts
from tests.audit.written import PLAIN, SOUND, make, read

CORPUS = read("sound_*.toml")
REGIONS = {"fp16": parts.half, "bf16": parts.bf16, "fp32": nullcontext}
RIGHT = (
    "docs: gradient clipping",
    "docs: gradient penalty",
    "docs: two models, two losses, two optimizers",
    "scaled gradients clipped to max_norm * scale",
    "sum-reduction, divided by the examples at the end",
    "OneCycle, moved if the scale did not fall",
    "fused AdamW, the gradients stay scaled until its kernel",
    "frozen base, thawed at the sixth call",
    "dropout, and the loss passed",
    "activation checkpointing, not reentrant, accumulation",
)
REAL = {
    "resnet": {
        "model": "DigitsResNet(8)",
        "batches": "[(torch.rand(8, 1, 8, 8), torch.arange(8)) for _ in range(3)]",
    },
    "gpt": {
        "model": "CharGPT(20, 8, 2, 2, 16)",
        "batches": "[tuple(torch.randint(0, 20, (2, 4, 8))) for _ in range(3)]",
    },
}
STEP = {
    "criterion": "lambda out, y: F.cross_entropy(out.flatten(0, -2), y.flatten())",
    "optimizer": "AdamW, lr=1e-3",
    "scaler": "init_scale=2.0**10",
    "step": "forward; backward; unscale; clip; step; update; clear",
    "given": "loss=lambda model, x, y: criterion(model(x), y), max_norm=1.0",
}


def report_of(step: str = PLAIN, base: dict[str, Any] = SOUND, **case: Any) -> Report:
    train_step, arguments, _ = make("a step", case | {"step": step}, base)
    return audit(train_step, **arguments)


def in_region(case: dict[str, Any], dtype: str) -> dict[str, Any]:
    return case | {"names": {"half": REGIONS[dtype], "bf16": REGIONS[dtype]}}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_passes_in_bf16_and_lacks_its_region_in_fp32(name: str, dtype: str) -> None:
    deserved = ("no-autocast",) if dtype == "fp32" else ()
    assert report_of(**in_region(CORPUS[name], dtype)).names == deserved


@pytest.mark.parametrize(
    ("dtype", "names"), [("fp16", ("fp16-without-scaler",)), ("bf16", ()), ("fp32", ())]
)
@pytest.mark.parametrize("scaler", [{}, {"scaler": "enabled=False"}], ids=["none", "disabled"])
def test_a_loop_without_a_scaler_needs_one_in_fp16_alone(
    scaler: dict, dtype: str, names: tuple
) -> None:
    step = PLAIN if scaler else "clear; forward; loss.backward(); optimizer.step()"
    assert report_of(step, **in_region(scaler, dtype)).names == names


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_right_loops_pass_on_other_data(seed: int) -> None:
    batch = "(3 * torch.randn(8, 8), torch.randint(0, 3, (8,)))"
    other = f"(torch.manual_seed({seed}), [{batch} for _ in range(8)])[1]"
    for name in RIGHT:
        assert report_of(base=SOUND | {"data": other}, **CORPUS[name]).names == (), (name, seed)


@pytest.mark.parametrize(
    ("name", "dtype"), [("resnet", "fp16"), ("resnet", "fp32"), ("gpt", "fp16"), ("gpt", "bf16")]
)
def test_a_right_loop_passes_on_the_courses_models(name: str, dtype: str) -> None:
    without = {"scaler": "enabled=False"} if dtype == "fp32" else {}
    assert report_of(**in_region(REAL[name] | STEP | without, dtype)).names == ()


def test_an_iterator_of_batches_is_not_read_further_than_needed() -> None:
    read_so_far = []
    step, arguments, _ = make("a step", {}, SOUND)
    arguments["batches"] = (read_so_far.append(1) or batch for batch in parts.classes(20))
    report = audit(step, **arguments, loss=parts.plain)
    assert not report.names and len(read_so_far) <= 4 and "batches" in dict(report.not_put_back)


def test_a_loss_computed_before_an_audit_can_be_differentiated_after_it() -> None:
    step, arguments, _ = make("a step", {}, SOUND)
    model, batch = arguments["model"], arguments["batches"][0]
    wanted = torch.autograd.grad(parts.plain(model, *batch), list(model.parameters()))
    pending = parts.plain(model, *batch)
    assert audit(step, **arguments).names == ()
    assert all(map(torch.equal, torch.autograd.grad(pending, list(model.parameters())), wanted))


def test_a_learners_module_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_counters.py").write_text(
        "count, history = 0, []\ndef note():\n    global count\n    count += 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = "import my_counters; losses, objects = [], np.array([None]); objects[0] = []"
    pairs = "record = losses.append; pairs = zip([*range(100)], [*range(100)], strict=True)"
    words = "my_counters.note(); my_counters.history.append(1); record(1); next(pairs)"
    case = {"before": f"{before}; {pairs}", "step": f"{PLAIN}; {words}; objects[0].append(1)"}
    step, arguments, names = make("a step", case, SOUND)
    report = audit(step, **arguments)
    assert report.names == () and report.not_put_back == (), report
    module = names["my_counters"]
    assert (module.count, module.history, names["losses"], names["objects"][0]) == (0, [], [], [])
