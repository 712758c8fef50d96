from __future__ import annotations

import pytest
import torch
from torch import nn

from amp_course.audit import audit
from amp_course.kit.models import CharGPT, DigitsResNet
from tests.audit.scenes import RIGHT, Scene, plain

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_passes(name: str, dtype: str) -> None:
    sizes = (8, 3, 5, 8, 8, 8) if name == "divides_at_the_end" else (8, 8, 8, 8)
    scene = Scene(DTYPES[dtype], sizes)
    report = audit(RIGHT[name](scene), **scene.objects)
    assert report.names == _deserved(name, dtype), report


def _deserved(name: str, dtype: str) -> tuple[str, ...]:
    """A loop that is right in one dtype may lack its scaler in fp16, and its autocast in fp32."""
    scales = name not in ("no_scaler", "disabled_scaler")
    if dtype == "fp16" and not scales:
        return ("fp16-without-scaler",)
    return ("no-autocast",) if dtype == "fp32" and scales else ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_right_loops_pass_on_other_data(seed: int) -> None:
    for name, make in RIGHT.items():
        scene = Scene()
        torch.manual_seed(seed)
        scene.objects["batches"] = [(3 * torch.randn(8, 16), torch.randint(0, 5, (8,))) for _ in range(6)]
        assert audit(make(scene), **scene.objects).names == _deserved(name, "fp16"), (name, seed)


TEXT = torch.randint(0, 20, (3, 2, 4, 8), generator=torch.Generator().manual_seed(1))
REAL = {
    "resnet": (lambda: DigitsResNet(8), [(torch.rand(8, 1, 8, 8), torch.arange(8)) for _ in range(3)]),
    "gpt": (lambda: CharGPT(20, 8, 2, 2, 16), [(x, y) for x, y in TEXT]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REAL)
def test_a_right_loop_passes_on_the_courses_models(name: str, dtype: str) -> None:
    make, batches = REAL[name]
    torch.manual_seed(0)
    scene = Scene(DTYPES[dtype])
    scene.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype != "fp32")
    scene.model = make()
    scene.optimizer = torch.optim.AdamW(scene.model.parameters(), lr=1e-3)

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        with scene.autocast():
            value = loss(scene.model, x, y)
        scene.scaler.scale(value).backward()
        scene.scaler.unscale_(scene.optimizer)
        scene.clip()
        scene.finish()

    objects = scene.objects | {
        "model": scene.model,
        "scaler": scene.scaler,
        "optimizer": scene.optimizer,
        "batches": batches,
        "loss": loss,
    }
    assert audit(step, **objects, max_norm=1.0)


def test_says_what_was_judged() -> None:
    scene = Scene()
    report = audit(RIGHT["accumulates"](scene), **scene.objects)
    for behaviour in (
        "backward",
        "autocast",
        "steps",
        "updates",
        "clearing",
        "clipping",
        "loss scale",
        "gradient",
        "overflow",
    ):
        assert behaviour in report.checked
    left = dict(report.not_checked)
    assert "no argument `last`" in left["shorter last group"]
    assert "same size" in left["unequal micro-batches"]
    bare = audit(RIGHT["no_scaler"](other := Scene(torch.bfloat16)), **{**other.objects, "loss": None})
    assert set(dict(bare.not_checked)) == {"loss scale", "gradient", "overflow"}


def test_a_run_goes_on_as_if_there_had_been_no_audit() -> None:
    def weights(audited: bool) -> list[torch.Tensor]:
        scene = Scene()
        step = RIGHT["dropout_and_norm"](scene)
        for number in range(6):
            if audited and number == 3:
                audit(step, **scene.objects)
            step(*scene.batches[number % 4])
        return list(scene.model.parameters())

    assert all(map(torch.equal, weights(True), weights(False)))


def test_a_step_that_sets_training_mode_passes_on_a_model_left_in_evaluation_mode() -> None:
    scene = Scene()
    step = RIGHT["goes_to_training_mode"](scene)
    scene.model.eval()
    assert audit(step, **scene.objects)
    assert not any(module.training for module in scene.model.modules())


def test_a_raising_step_is_explained_and_autocast_is_off() -> None:
    scene = Scene()

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
        raise RuntimeError("something of your own")

    report = audit(step, **scene.objects)
    assert set(report.names) == {"autocast-left-open", "step-raises"}
    assert "something of your own" in next(one.cause for one in report.findings if one.name == "step-raises")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "net"}, TypeError, "nn.Module"),
        ({"model": []}, TypeError, "nn.Module"),
        ({"optimizer": None}, TypeError, "Optimizer"),
        ({"scaler": 1024.0}, TypeError, "GradScaler"),
        ({"max_norm": 0.0}, ValueError, "above 0"),
        ({"tolerance": -1.0}, ValueError, "above 0"),
    ],
)
def test_objects_of_the_wrong_kind(changes: dict, error: type[Exception], words: str) -> None:
    scene = Scene()
    with pytest.raises(error, match=words):
        audit(plain(scene), **{**scene.objects, **changes})
    with pytest.raises(TypeError, match="train_step"):
        audit(None, **scene.objects)  # type: ignore[arg-type]


def test_a_loss_that_raises_only_leaves_the_gradient_out() -> None:
    scene = Scene()
    scene.objects["loss"] = lambda model, x, y: 1 / 0
    report = audit(plain(scene), **scene.objects)
    assert report
    assert "raised" in dict(report.not_checked)["gradient"]


def test_batches_may_be_single_tensors_and_fewer_than_a_group() -> None:
    scene = Scene()
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, last: bool) -> None:
        scene.scaler.scale(model(x).square().mean() / 3).backward()
        if last:
            scene.scaler.step(optimizer)
            scene.scaler.update()
            optimizer.zero_grad()

    report = audit(
        step,
        model=model,
        optimizer=optimizer,
        scaler=scene.scaler,
        batches=[x for x, _ in scene.batches[:2]],
        loss=lambda model, x: model(x).square().mean(),
        accumulate=3,
    )
    assert set(report.names) == {"last-group-mean", "no-autocast"}  # it divides by 3 even where there are 2


def test_reads_well() -> None:
    scene = Scene()

    def by_hand(x: torch.Tensor, y: torch.Tensor) -> None:
        scene.scaler.scale(scene.loss(x, y)).backward()
        scene.optimizer.step()
        scene.optimizer.zero_grad()

    wrong = audit(by_hand, **scene.objects)
    assert repr(wrong).startswith("1 fault found in the step\n\n1. still-scaled: ")
    assert "loss scales: 1024 and 256" in repr(wrong)
    page = wrong._repr_html_()
    assert "<code>scaler.step(optimizer)</code>" in page and "still-scaled" in page
    right = audit(plain(scene := Scene()), **scene.objects)
    assert repr(right).startswith("No fault found in the step")
    assert "No fault" in right._repr_html_()


def test_what_the_reader_wrote_is_escaped() -> None:
    scene = Scene()

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        raise ValueError("<script>alert(1)</script>")

    assert "<script>" not in audit(step, **scene.objects)._repr_html_()
