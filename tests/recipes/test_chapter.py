"""What chapter 08 says in prose about cells whose outputs are not compared."""

import math
import statistics

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.bits.formats import FP16
from amp_course.kit.data import digit_batches, digits
from amp_course.kit.models import DigitsResNet
from amp_course.recipes import ALL, HALF_BN32, O0, O1, O2, O3, PURE_BF16, PURE_BF16_SR, measure_all
from amp_course.recipes.survival import load_survival, train_to_the_end


@pytest.fixture(scope="module")
def batches():
    return list(digit_batches(digits(), batch_size=32, steps=8, seed=1))


def fresh(channels=8):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DigitsResNet(channels)


def losses(recipe, batches, make_optimizer=torch.optim.Adam):
    session = recipe.prepare(fresh(), make_optimizer, cross_entropy)
    return [session.step(x, y).item() for x, y in batches]


def test_two_of_eight_die_at_the_second_step_and_all_begin_alike(batches):
    found = {recipe.name: losses(recipe, batches) for recipe in ALL}
    diverged = {name for name, values in found.items() if math.isnan(values[1])}
    assert diverged == {"o3", "half_bn32"}
    firsts = [values[0] for values in found.values()]
    assert max(firsts) - min(firsts) < 0.02 and 2.3 < min(firsts) < max(firsts) < 2.5
    for name, values in found.items():
        assert name in diverged or all(map(math.isfinite, values))


def test_it_is_epsilon_that_kills_and_a_larger_one_saves(batches):
    def with_eps(params):
        return torch.optim.Adam(params, eps=1e-3)

    alive = losses(O3(), batches, with_eps)
    assert all(map(math.isfinite, alive))
    assert abs(alive[-1] - losses(O2(), batches, with_eps)[-1]) < 0.1
    # The first update is what is infinite: no weight is at fault before it.
    session = O3().prepare(fresh(), torch.optim.Adam, cross_entropy)
    session.step(*batches[0])
    assert not all(p.isfinite().all() for p in session.model.parameters())


def test_table_says_what_the_prose_says(batches):
    table = measure_all(ALL, fresh(16), *batches[0])
    for row in table.rows[1:]:
        assert 0.5 < row.activation_bytes / table["o0"].activation_bytes < 0.6
        is_half = row.name in ("o3", "half_bn32", "pure_bf16", "pure_bf16_sr")
        assert (row.bytes_per_parameter < 9) == is_half


def test_a_mean_of_300_overflows_at_219_pictures():
    assert 218 * 300 < FP16.max < 219 * 300
    logits, targets = torch.zeros(256, 10), torch.zeros(256, dtype=torch.int64)
    logits[:, 1] = 300
    half = logits.half().requires_grad_()
    loss = cross_entropy(half, targets)
    loss.backward()
    # it blinds, and need not kill
    assert loss.isinf() and half.grad.isfinite().all() and half.grad.any()


def test_what_the_recorded_map_shows():
    found = load_survival()
    for setting in ("raw", "resnet"):
        assert not any(found.deaths(setting, recipe) for recipe in found.recipes())
    deaths = {recipe: found.deaths("raw_sum", recipe) for recipe in found.recipes()}
    for recipe in ("o3", "half_bn32"):
        counts = deaths.pop(recipe)
        assert min(counts) == 64 and counts[256] == counts[512] == 3
        assert list(counts.values()) == sorted(counts.values())
    assert not any(deaths.values())

    def median(setting, recipe):
        return statistics.median(run.accuracy for run in found.cell(setting, recipe, 512))

    for setting in ("raw", "raw_sum"):
        for recipe in ("o1", "o2"):
            assert 0.08 < median(setting, "o0") - median(setting, recipe) < 0.095  # "8 to 9 points"


@pytest.mark.slow
def test_skipped_steps_are_what_that_accuracy_went_into():
    """With a scale that fits from the start, O1 skips nothing and is as good as fp32."""
    fits = train_to_the_end("raw_sum", O1(loss_scale=0.25), 512, seed=1)
    fp32 = next(run for run in load_survival().cell("raw_sum", "o0", 512) if run.seed == 1)
    assert fits.skipped == 0 and fits.accuracy > fp32.accuracy - 0.03


def test_pure_recipes_live_under_sgd_on_easy_digits(batches):
    """As the report card shows: what kills is not 16 bits as such."""
    for recipe in (O3(), HALF_BN32(), PURE_BF16()):
        found = losses(
            recipe, batches, lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9)
        )
        assert all(map(math.isfinite, found)) and found[-1] < found[0]


def test_masters_stay_where_they_began_and_stochastic_rounding_brings_bf16_as_near_as_fp16():
    points = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    classes = torch.arange(64) % 4

    def trajectory(recipe):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        session = recipe.prepare(
            net, lambda params: torch.optim.SGD(params, lr=0.01), cross_entropy
        )
        for _ in range(200):
            session.step(points, classes)
            owned = session.optimizer.param_groups[0]["params"]
            yield nn.utils.parameters_to_vector(owned).detach().float().clone()

    twin = list(trajectory(O0()))
    drift = {}
    for recipe in (O2(), O3(), PURE_BF16_SR(), PURE_BF16()):
        pairs = zip(trajectory(recipe), twin, strict=True)
        drift[recipe.name] = [((w - t).norm() / t.norm()).item() for w, t in pairs]
    assert max(drift["o2"]) < 2**-10 and drift["o2"][-1] < 1.5 * drift["o2"][0]
    assert drift["o3"][-1] > 2**-10
    assert drift["pure_bf16"][-1] > 4 * drift["pure_bf16_sr"][-1]
    assert 0.5 < drift["pure_bf16_sr"][-1] / drift["o3"][-1] < 2
