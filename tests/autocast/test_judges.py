"""What judges measure themselves, and how they take odd answers, many draws and a state that was left behind."""

import ast
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import _len_torch_function_stack

from amp_course.autocast.exercises import ALL, end_region, fp32_island, mini_autocast, safe_function, safe_loss
from amp_course.autocast.judges import functions, mini, regions, sigmoid
from amp_course.autocast.judges.casts import FP32_OPS, LOWER_OPS, WIDEST_OPS, cases
from amp_course.autocast.judges.kernels import KernelLog
from amp_course.autocast.judges.predicting import QUESTIONS, RAISES, run
from amp_course.checking import Wrong
from tests.exercises.answers import autocast as answers

ROOT = Path(__file__).parents[2]
LOW = [torch.bfloat16, torch.float16]
ODD = [None, "text", 3, 2.5, True, [], {}, (1, 2), object(), torch.ones(2, 2), torch.tensor(3), torch.tensor(1j)]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__ + str(odd)[:9])
def test_odd_returns_are_told_in_words(exercise, odd):
    outcome = exercise.check(odd if exercise.name == "predict_dtypes" else lambda *arguments: odd)
    assert outcome.state == "not yet" and len(outcome.message) > 20
    assert "Traceback" not in outcome.message


@pytest.mark.parametrize("exercise", [end_region, fp32_island, safe_loss], ids=lambda exercise: exercise.name)
def test_what_was_right_once_is_wrong_on_the_next_draw(exercise):
    right, kept = next(iter(answers.RIGHT[exercise.name].values())), []

    def record(*arguments):
        kept.append(right(*arguments))
        return kept[-1]

    assert exercise.check(record).state == "correct"
    assert exercise.check(lambda *arguments: kept[0]).state == "not yet"


def test_nothing_is_left_switched_by_answers_that_leave_it_so():
    depth = _len_torch_function_stack()
    for exercise in (mini_autocast, fp32_island, safe_function):
        for answer, _ in answers.WRONG[exercise.name].values():
            exercise.check(answer)
    assert _len_torch_function_stack() == depth
    assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


# --- 1. predict_dtypes ------------------------------------------------------------------------------------
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_each_tempting_answer_is_explained_and_none_is_right(question):
    assert run(question) not in question.mistakes
    assert len(question.mistakes) >= 2
    assert set(question.mistakes) <= {"float32", "bfloat16", "float64", RAISES}


def test_the_blank_shows_the_lines_that_the_check_runs():
    cells = json.loads((ROOT / "exercises" / "04_autocast.ipynb").read_text(encoding="utf-8"))["cells"]
    (blank,) = ["".join(cell["source"]) for cell in cells if 'dtypes["mm"]' in "".join(cell["source"])]
    shown = dict(line[8:].split('"] = ...  # ') for line in blank.splitlines() if line.startswith('dtypes["'))
    assert shown == {question.name: question.code for question in QUESTIONS}
    for code in shown.values():
        ast.parse(code, mode="eval")


# --- 2. mini_autocast -------------------------------------------------------------------------------------
def draw():
    return torch.randn(8, 8), torch.randn(8, 8)


@pytest.mark.parametrize("dtype", LOW)
def test_an_op_of_the_lists_is_where_torch_has_it(dtype):
    a = torch.randn(4, 4)
    h, i = a.to(dtype), torch.arange(4)
    asked = {
        "lower": (LOWER_OPS, dtype, lambda op: op(*matrices(op, a))),
        "fp32": (FP32_OPS, torch.float32, lambda op: op(*losses(op, h, i))),
        "widest": (WIDEST_OPS, torch.float32, lambda op: op(*mixed(op, a, h))),
    }
    for ops, want, call in asked.values():
        for op in ops:
            with torch.autocast("cpu", dtype=dtype):
                assert call(op).dtype == want, op


def matrices(op, a):
    if op in (torch.bmm, Tensor.bmm):
        return a[None], a[None]
    return {
        torch.addmm: (a, a, a),
        torch.einsum: ("ij,jk->ik", [a, a]),
        F.conv2d: (a[None, None], a[None, None]),
        F.scaled_dot_product_attention: (a, a, a),
    }.get(op, (a, a))


def losses(op, h, i):
    if op in (F.cross_entropy, F.nll_loss):
        return h, i
    return (h,) if op is torch.prod else (h, h)


def mixed(op, a, h):
    return (h, 0, torch.tensor([0]), a[:1]) if op in (torch.index_copy, Tensor.index_copy) else ([a, h],)


@pytest.mark.parametrize("dtype", LOW)
def test_cases_of_lists_are_reached_by_the_lists(dtype):
    """A case whose op is on a list but under another name would ask for what no mode could know."""
    a, b = draw()
    for case in cases(a, b, dtype):
        with torch.autocast("cpu", dtype=dtype):
            want = case.run().dtype
        with answers.MiniRight(dtype, LOWER_OPS, FP32_OPS, WIDEST_OPS):
            assert case.run().dtype == want, case.shown


def test_module_dtypes_tells_a_region_from_none():
    model, inputs = next(mini._models())
    low = mini.module_dtypes(model, inputs, torch.autocast("cpu", dtype=torch.bfloat16))
    assert set(low) == {"the model itself", "linear1", "linear2", "linear3"}
    assert set(low.values()) == {torch.bfloat16}
    assert set(mini.module_dtypes(model, inputs, torch.no_grad()).values()) == {torch.float32}
    assert all(not module._forward_hooks for module in model.modules())


def test_seen_counts_the_copies_of_a_weight_as_autocast_makes_them():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    for cache, count in ((True, 1), (False, 3)):
        with (
            KernelLog(layer.weight, layer.bias) as seen,
            torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache),
        ):
            for _ in range(3):
                layer(x)
        assert seen.copies == [count, count]
        assert seen.low_matmul() == torch.bfloat16


def test_seen_tells_casts_from_computing():
    with KernelLog() as seen:
        torch.ones(2, 2).bfloat16().t().float() @ torch.ones(2, 2)
    assert seen.low_op() is None and seen.low_matmul() is None
    with KernelLog() as seen:
        torch.ones(2, dtype=torch.float16).square()
    assert seen.low_op().name == "pow"


# --- 3. and 4. regions ------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(20))
def test_one_region_around_all_steps_trains_on_old_weights(seed):
    right, weights = regions._train(regions.Scene(seed, 6), stale=False)
    stale, _ = regions._train(regions.Scene(seed, 6), stale=True)
    assert right[0] == stale[0] and not torch.allclose(right, stale, rtol=0.02)
    scene = regions.Scene(seed, 6)
    assert torch.equal(torch.tensor(answers.e_right(scene.model, scene.batches, scene.loss_fn, scene.optimizer)), right)
    assert all(torch.equal(a, b) for a, b in zip(scene.weights(), weights, strict=True))


def test_the_exact_scores_are_those_of_rms_norm():
    x, weight = torch.randn(3, 8).double(), torch.randn(2, 8).double()
    want = F.linear(F.rms_norm(x, (8,), eps=regions.EPS), weight)
    torch.testing.assert_close(regions._exact(x, weight), want)


# --- 5. and 6. functions and losses -----------------------------------------------------------------------
def test_the_exact_distances_are_those_of_cdist():
    x, c = torch.randn(3, 8).double(), torch.randn(2, 8).double()
    torch.testing.assert_close(functions._exact(x, c), torch.cdist(x, c).square())


def test_looking_for_decorators_of_cuda_leaves_its_autocast_as_it_was():
    with pytest.raises(Wrong, match=r"the old torch\.cuda\.amp"):
        functions.judge(answers.WRONG["safe_function"]["old decorators"][0])
    assert not torch.is_autocast_enabled("cuda")


def test_the_exact_loss_is_torchs_in_float64_and_its_mistakes_are_others():
    scene = sigmoid.Examples(None)
    logits = scene.head(scene.features).detach().double()[:, 0]
    targets = scene.targets.double()
    want = F.binary_cross_entropy_with_logits(logits, targets)
    torch.testing.assert_close(sigmoid._bce(logits, targets).mean(), want)
    for words, mistaken in sigmoid._mistakes(logits, targets):
        assert not torch.isclose(mistaken, want, rtol=0.01), words


def test_the_largest_logits_of_a_scene_are_mistakes_that_have_to_teach():
    scene = sigmoid.Examples(torch.float16)
    logits = scene.head(scene.features)[:, 0]
    assert logits[-2] > 50 and logits[-1] < -50
    assert scene.targets[-2:].tolist() == [0.0, 1.0]
    assert 0 < scene.targets[:-2].sum() < len(scene.targets) - 2


def test_what_the_solution_notes_say_of_sigmoid_and_bceloss():
    for dtype, value in ((torch.float32, 17), (torch.float64, 37)):
        line = torch.arange(99, dtype=dtype).sigmoid()
        assert (line < 1).sum() == value
    for dtype, finite in ((torch.float32, True), (torch.bfloat16, True), (torch.float16, False)):
        logit = torch.tensor([50.0], dtype=dtype, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.binary_cross_entropy(torch.sigmoid(logit), torch.tensor([0.0]))
        loss.backward()
        assert loss == 100 and (logit.grad == 0 if finite else logit.grad.isnan())
