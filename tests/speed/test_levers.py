"""The levers: both sides compute the same, settings are put back, what cannot run says so.
No speed is asserted.
"""

import pytest
import torch
import torch.nn.functional as F

from amp_course.kit.children import ChildError, run_python
from amp_course.loop.recipe import AMP_BF16
from amp_course.speed.experiments import compiling, levers
from amp_course.speed.experiments.levers import (
    describe_settings,
    matmul_precision_restored,
    written_out,
)
from amp_course.speed.experiments.workbench import drawn, training
from tests.speed.made_up import CPU, SHORT, made_up, settings


@pytest.mark.parametrize(
    "pull",
    [levers.channels_last, levers.optimizers, levers.matmul_precision, levers.attention],
    ids=lambda pull: pull.__name__,
)
def test_a_lever_changes_no_loss_and_no_setting(pull):
    before, random = settings(), torch.get_rng_state()
    found = pull(seconds=SHORT)
    assert before == settings() and torch.equal(random, torch.get_rng_state())
    first, *others = found.comparison.results.items()
    for side, loss in others:
        exact = side.startswith("fp32") and pull is not levers.matmul_precision
        assert loss == pytest.approx(first[1], rel=1e-5 if exact else 3e-3)
        assert side.partition(", ")[2] in found.sentence


def test_a_training_step_leaves_its_model_unchanged():
    model, x = torch.nn.Linear(4, 4), drawn(2, 4, device=CPU)
    before = [one.clone() for one in model.parameters()]
    training(model, x, x, AMP_BF16)()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("length", [1, 7, 64])
def test_attention_written_out_is_the_fused_one(length):
    q, k, v = (drawn(2, 3, length, 16, device=CPU, seed=seed) for seed in range(3))
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(written_out(q, k, v), fused)


@pytest.mark.parametrize("each", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("whole", ["highest", "high"])
def test_the_precision_is_put_back_however_it_was_set(whole, each):
    def backends():
        return [backend.fp32_precision for backend in levers._BACKENDS]

    with matmul_precision_restored():
        torch.set_float32_matmul_precision(whole)
        for backend in levers._BACKENDS:
            # where this disagrees with the global setting, torch tells the latter no more
            backend.fp32_precision = each
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
    assert describe_settings(made_up(**times), "and a note") == (
        "In fp32, on is 2.00 times as fast as off (quartiles 2.00 to 2.00). "
        "Under AMP, on takes 2.00 times as long as off (quartiles 2.00 to 2.00). And a note."
    )


def test_cuda_graphs_need_a_gpu_and_say_so():
    found = levers.cuda_graphs(CPU)
    assert found.comparison is None and "no such GPU here" in found.sentence


# ── torch.compile ──


def test_compiling_is_given_up_in_time():
    assert compiling.compiled(longest=0.2).sentence.startswith(
        "Nothing was compiled: it was not done after 0 s; what the compiler finished is kept"
    )


@pytest.mark.parametrize(
    "answer", [ChildError("it needs a C++ compiler"), '{"error": "it needs a C++ compiler"}']
)
def test_what_prevents_compiling_is_named(monkeypatch, answer):
    def run(code, **_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(compiling, "run_python", run)
    words = "Nothing was compiled: it needs a C++ compiler."
    assert compiling.compiled().sentence == words


def test_the_cause_is_found_at_the_bottom_of_inductors_errors():
    def wrapped(inner):
        try:
            raise RuntimeError("backend='inductor' raised:") from inner
        except RuntimeError as outer:
            return compiling._cause(outer)

    missing = "No working C++ compiler found in torch._inductor.config.cpp.cxx"
    assert "install g++" in wrapped(RuntimeError(missing))
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
        assert "compiler" in found.claim or "not supported" in found.claim, found.claim
        return
    results = found.comparison.results
    assert results["fp32, compiled code"] == pytest.approx(results["fp32, eager code"], abs=1e-5)
    assert results["AMP, compiled code"] == pytest.approx(results["AMP, eager code"], abs=1e-3)
    assert "Compiling took" in found.sentence and "<table" in found._repr_html_()


def test_compiled_in_words():
    times = {
        "fp32, eager code": 1.0,
        "fp32, compiled code": 0.5,
        "AMP, eager code": 1.0,
        "AMP, compiled code": 1.0,
    }
    text = compiling.describe_compiled(made_up(**times), [8.0, 0.05])
    assert "In fp32, compiled code is 2.00 times as fast as eager code" in text
    assert "Compiling took 8.00 s and 50.0 ms" in text
