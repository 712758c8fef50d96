"""The levers: both sides compute the same, settings are put back, what cannot run says so.
No speed is asserted.
"""

import json

import pytest
import torch
import torch.nn.functional as F

from amp_course.kit.children import ChildError, run_python
from amp_course.loop.recipe import AMP_BF16, FP32
from amp_course.speed.counting import count_ops
from amp_course.speed.experiments import compiling, levers
from amp_course.speed.experiments.compiling import Compiled
from amp_course.speed.experiments.figures import break_even_figure
from amp_course.speed.experiments.levers import Lever, matmul_precision_restored, written_out
from amp_course.speed.experiments.workbench import drawn, training
from tests.speed.test_experiments import CPU, even, made_up, settings

SHORT = 0.02
LEVERS = {
    "channels_last": levers.channels_last,
    "optimizers": levers.optimizers,
    "zero_grad": levers.zero_grad,
    "matmul_precision": levers.matmul_precision,
    "attention": levers.attention,
}


@pytest.mark.parametrize("name", LEVERS)
def test_a_lever_changes_no_loss_and_no_setting(name):
    before, random = settings(), torch.get_rng_state()
    found = LEVERS[name](seconds=SHORT)
    assert before == settings() and torch.equal(random, torch.get_rng_state())
    assert set(found.comparison.seconds) == {
        f"{label}, {one}" for label in ("fp32", "AMP") for one in found.settings
    }
    first = found.comparison.results[f"fp32, {found.settings[0]}"]
    for side, loss in found.comparison.results.items():
        assert loss == pytest.approx(
            first, rel=1e-5 if side.startswith("fp32") and name != "matmul_precision" else 3e-3
        )
    assert all(one in found.sentence for one in found.settings) and found.title in str(found)
    assert json.loads(json.dumps(found.to_dict()))["settings"] == list(found.settings)


def test_optimizers_and_layouts_train_to_the_same_weights():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    x, y = drawn(4, 8, device=CPU), drawn(4, 8, device=CPU, seed=2)
    losses = []
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        step = training(
            model,
            x,
            y,
            make_optimizer=lambda p, options=options: torch.optim.AdamW(p, lr=0.01, **options),
        )
        losses.append([float(step()) for _ in range(5)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and losses[2] == pytest.approx(
        losses[0], rel=1e-5
    )
    assert losses[0][4] < losses[0][0]


def test_a_training_step_leaves_the_model_it_was_given():
    model, x = torch.nn.Linear(4, 4), drawn(2, 4, device=CPU)
    before = [one.clone() for one in model.parameters()]
    training(model, x, x, AMP_BF16)()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_zeroing_keeps_the_gradients_and_costs_an_op_for_each():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    levers._Zeroing([weight], lr=1.0).zero_grad()
    assert weight.grad is not None and not weight.grad.any()


def test_fused_optimizers_are_one_op():
    counts = {}
    for name, options in {"one by one": {"foreach": False}, "fused": {"fused": True}}.items():
        weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(5)]
        for weight in weights:
            weight.grad = torch.ones(3)
        optimizer = torch.optim.AdamW(weights, **options)
        optimizer.step()
        with count_ops() as counter:
            optimizer.step()
        counts[name] = [call.op for call in counter.calls]
    assert "aten._fused_adamw_" in counts["fused"] and len(counts["fused"]) < 5 < len(
        counts["one by one"]
    )


@pytest.mark.parametrize("length", [1, 7, 64])
def test_attention_written_out_is_the_fused_one(length):
    q, k, v = (drawn(2, 3, length, 16, device=CPU, seed=seed) for seed in range(3))
    torch.testing.assert_close(
        written_out(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)
    )


@pytest.mark.parametrize("each", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("whole", ["highest", "high"])
def test_the_precision_is_put_back_however_it_was_set(whole, each):
    def backends():
        return [backend.fp32_precision for backend in levers._BACKENDS]

    with matmul_precision_restored():
        torch.set_float32_matmul_precision(whole)
        for backend in levers._BACKENDS:
            backend.fp32_precision = (
                each  # where this disagrees with the global setting, torch tells the latter no more
            )
        before = backends()
        with pytest.raises(ZeroDivisionError), matmul_precision_restored():
            torch.set_float32_matmul_precision("medium")
            raise ZeroDivisionError
        assert backends() == before
        for backend in levers._BACKENDS:
            backend.fp32_precision = "none"
        assert torch.get_float32_matmul_precision() == whole


def test_a_lever_in_words():
    times = {"fp32, off": 1.0, "fp32, on": 0.5, "AMP, off": 1.0, "AMP, on": 2.0}
    told = Lever(made_up(**times), (), "A lever", ("off", "on"), "and a note").sentence
    assert told == (
        "In fp32, on is 2.00 times as fast as off (quartiles 2.00 to 2.00). "
        "Under AMP, on takes 2.00 times as long as off (quartiles 2.00 to 2.00). And a note."
    )


def test_each_recipe_gets_its_steps_once():
    made = []

    def make(recipe):
        made.append(recipe)
        return lambda: None

    found = levers.pull("A lever", {"off": make, "on": make}, CPU, SHORT)
    assert made == [FP32, FP32, AMP_BF16, AMP_BF16]
    assert (
        found.comparison.base["AMP, on"] == "AMP, off"
        and found.comparison.base["fp32, on"] == "fp32, off"
    )


def test_cuda_graphs_need_a_gpu_and_say_so():
    found = levers.cuda_graphs(CPU)
    assert (
        found.comparison is None and "no such GPU here" in found.sentence and "NVIDIA" in str(found)
    )


# ── torch.compile ──


def test_compiling_is_given_up_in_time():
    found = compiling.compiled(longest=0.2)
    assert found.comparison is None
    assert found.sentence.startswith(
        "Nothing was compiled: it was not done after 0 s; what the compiler finished is kept"
    )


@pytest.mark.parametrize(
    "raised, words",
    [
        ("ChildError('ImportError: no torch._dynamo')", "ImportError: no torch._dynamo"),
        ('\'{"error": "it needs a C++ compiler"}\'', "it needs a C++ compiler"),
    ],
)
def test_what_keeps_it_from_compiling_is_told(monkeypatch, raised, words):
    def answer(code, **_):
        given = eval(raised, {"ChildError": ChildError})
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(compiling, "run_python", answer)
    assert compiling.compiled().sentence == f"Nothing was compiled: {words}."


def test_the_cause_is_found_at_the_bottom_of_inductors_errors():
    def wrapped(inner):
        try:
            try:
                raise inner
            except Exception as error:
                raise RuntimeError("backend='inductor' raised:") from error
        except RuntimeError as outer:
            return compiling._cause(outer)

    assert "install g++" in wrapped(
        RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx")
    )
    assert "install g++" in wrapped(type("InvalidCxxCompiler", (RuntimeError,), {})())
    assert "Triton" in wrapped(RuntimeError("Cannot find a working triton installation. Triton"))
    assert wrapped(ValueError("else")) == "backend='inductor' raised:"


# as tests/conftest.py
QUIET = "from amp_course.kit import measure; measure.read_waits = lambda: {'main': 0}; "


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_compiled_and_eager_give_the_same_or_the_reason_why_not(monkeypatch):
    monkeypatch.setattr(
        compiling, "run_python", lambda code, **more: run_python(QUIET + code, **more)
    )
    found = compiling.compiled(seconds=SHORT, longest=150)
    if found.comparison is None:
        assert "compiler" in found.error or "not supported" in found.error, found.error
        return
    results = found.comparison.results
    assert results["fp32, compiled"] == pytest.approx(results["fp32, eager"], abs=1e-5)
    assert results["AMP, compiled"] == pytest.approx(results["AMP, eager"], abs=1e-3)
    assert set(found.compile_seconds) == {"fp32", "AMP"} and "Compiling took" in found.sentence


def test_compiled_in_words():
    times = {"fp32, eager": 1.0, "fp32, compiled": 0.5, "AMP, eager": 1.0, "AMP, compiled": 1.0}
    told = Compiled(made_up(**times), (), {"fp32": 8.0, "AMP": 0.05}).sentence
    assert (
        "In fp32, compiled code is 2.00 times as fast as eager code" in told
        and "Compiling took 8.00 s and 50.0 ms" in told
    )


def test_the_figure_says_in_words_what_it_shows():
    figure = break_even_figure(even((-2, 3, 4)))
    assert "width 64: saves -2,000,000 µs, casts take 1,000,000 µs" in figure.alt
    figure.canvas.draw()
