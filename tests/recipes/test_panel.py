"""`RecipeExplorer` without a browser: what it shows is measured, options belong to recipes,
and it never throws.
"""

import json
import re
from dataclasses import fields

import pytest
import torch

from amp_course.kit.markup import percent
from amp_course.kit.memory import bytes_text
from amp_course.recipes import ALL, O3, find, measure
from amp_course.recipes import panel as panel_module
from amp_course.recipes.panel import RecipeExplorer, _loss


@pytest.fixture(scope="module")
def made():
    return RecipeExplorer()


@pytest.fixture
def panel(made):
    made.optimizer.value, made.rate.value = "Adam", 1e-3
    made.net.value, made.size.value = "DigitsResNet", 10**9
    made.recipe.value = "o0"
    made.recipe.value = "o2"
    return made


def cells(panel, first):
    """Return the texts of a row of the table, found by how its first cell begins."""
    for row in re.findall(r"<tr>(.*?)</tr>", panel.html):
        texts = [re.sub(r"<[^>]+>", "", cell).strip() for cell in row.split("</td>")]
        if texts[0].startswith(first):
            return texts[1:-1]
    raise LookupError(first)


@pytest.mark.parametrize(
    ("name", "net"),
    [*((recipe.name, "DigitsResNet") for recipe in ALL), ("o2", "CharGPT"), ("o1", "SimpleNet")],
)
def test_what_is_shown_is_what_a_step_holds(panel, name, net):
    panel.net.value, panel.recipe.value = net, name
    row = measure(find(name), *panel._nets[net], loss_fn=_loss, make_optimizer=torch.optim.Adam)
    assert panel.measured == row
    assert cells(panel, "weights")[0] == " ".join(row.weights)
    assert cells(panel, "master weights")[0] == (" ".join(row.master) or "–")
    assert cells(panel, "gradients")[0] == " ".join(row.gradients)
    assert cells(panel, "optimizer state")[0] == " ".join(row.optimizer_state)
    assert cells(panel, "batch norm statistics")[0] == (" ".join(row.batch_norm) or "–")
    assert cells(panel, "together")[1:] == [f"{row.bytes_per_parameter:.1f}", "16.0"]
    assert cells(panel, "loss scale")[1] == row.scaling
    large = [bytes_text(1e9 * each) for each in (row.bytes_per_parameter, 16)]
    assert cells(panel, "1 billion parameters")[1:] == large


@pytest.mark.parametrize("optimizer, each", [("SGD", 8), ("SGD with momentum", 12), ("Adam", 16)])
def test_fp32_keeps_what_one_can_count_by_hand(panel, optimizer, each):
    panel.recipe.value, panel.optimizer.value, panel.size.value = "o0", optimizer, 7 * 10**9
    assert panel.measured.bytes_per_parameter == each
    assert cells(panel, "7 billion")[1] == bytes_text(each * 7e9)


def test_an_option_that_a_recipe_lacks_is_disabled(panel):
    for recipe in ALL:
        panel.recipe.value = recipe.name
        own = {field.name for field in fields(recipe)} & set(panel.options)
        assert {name for name, menu in panel.options.items() if not menu.disabled} == own
        assert panel.chosen == recipe  # its own defaults
        for name in own:
            assert panel.options[name].value == getattr(recipe, name)


def test_without_masters_adam_in_fp16_dies_at_the_first_step_and_bf16_lives(panel):
    # batch norm has no masters
    assert panel.update_reach.broken == 0 and cells(panel, "master weights")[1] == "3.9"
    panel.options["master_weights"].value = False
    assert panel.update_reach.broken > 0 and "this training is over" in panel.html
    # a weight that is NaN has not arrived anywhere
    assert panel.update_reach.weights + panel.update_reach.broken <= 1
    assert panel.measured.bytes_per_parameter < 9
    panel.options["dtype"].value = torch.bfloat16
    assert panel.update_reach.broken == 0 and "this training is over" not in panel.html
    panel.recipe.value = "o3"
    assert panel.update_reach.broken > 0
    panel.options["master_weights"].value = True
    assert panel.update_reach.broken == 0


def test_a_lower_rate_reaches_fewer_bf16_weights_and_all_masters(panel):
    panel.recipe.value, panel.optimizer.value = "pure_bf16", "SGD"
    shares = []
    for rate in (1e-1, 1e-3, 1e-5):
        panel.rate.value = rate
        shares.append(panel.update_reach.weights)
    assert shares[0] > 0.8 and shares[0] > shares[1] > shares[2] and shares[2] < 0.1
    panel.recipe.value = "o2"
    assert panel.update_reach.weights < 0.2 and panel.update_reach.masters > 0.9
    assert f"{percent(panel.update_reach.masters)} of their masters" in panel.html


def test_reach_is_what_one_sees_by_hand(panel):
    model, x, y = panel._nets["CharGPT"]
    panel.net.value, panel.recipe.value, panel.optimizer.value = "CharGPT", "o0", "SGD"
    twin = type(model)(32, context=8, layers=1, heads=2, width=32)
    twin.load_state_dict(model.state_dict())
    _loss(twin(x), y).backward()
    moved = [parameter.detach() - 1e-3 * parameter.grad for parameter in twin.parameters()]
    changed = sum(int((a != b).sum()) for a, b in zip(moved, model.parameters(), strict=True))
    assert panel.update_reach.weights == pytest.approx(
        changed / sum(m.numel() for m in moved), abs=1e-3
    )
    assert panel.update_reach.masters is None and panel.update_reach.skipped == 0


def test_nothing_of_the_net_or_the_readers_settings_changes(panel):
    model = panel._nets["DigitsResNet"][0]
    before = [parameter.clone() for parameter in model.parameters()]
    torch.manual_seed(torch.initial_seed() + 1)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    panel._measured.clear()
    panel._reached.clear()
    with torch.no_grad():
        panel.recipe.value = "o3"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def test_a_choice_is_measured_once(panel, monkeypatch):
    panel.recipe.value = "o1"
    for name in ("measure", "update_reach"):
        monkeypatch.setattr(panel_module, name, lambda *_, **__: pytest.fail("measured again"))
    panel.recipe.value = "o2"
    panel.recipe.value = "o1"
    panel.size.value = 10**8
    assert panel.chosen == find("o1")


def test_what_cannot_be_measured_gets_a_message_and_the_view_stays(panel, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("<i>no</i> step")

    monkeypatch.setattr(panel_module, "update_reach", broken)
    panel._reached.pop((O3(), "DigitsResNet", "Adam", 1e-3), None)
    before = panel.html
    panel.recipe.value = "o3"
    assert "Nothing changed.</b> &lt;i&gt;no&lt;/i&gt; step" in panel.message
    assert panel.html == before
    panel.recipe.value = "o2"
    assert not panel.message


@pytest.fixture(scope="module")
def live():
    """The panel of a part of what is recorded for the book: all of it takes half a minute."""
    adam, net = panel_module._OPTIMIZERS["Adam"], panel_module._NETS["DigitsResNet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel_module, "_NETS", {"DigitsResNet": net})
        patch.setattr(panel_module, "_OPTIMIZERS", {"Adam": adam})
        patch.setattr(panel_module, "_RATES", (1e-3, 1e-5))
        text = json.dumps(RecipeExplorer.record(), separators=(",", ":"))
        return RecipeExplorer.of(json.loads(text))


def test_what_is_recorded_for_a_page_shows_the_same(panel, live, monkeypatch):
    def choose(one):
        """Yield what is shown of each recipe, and of each with one other option."""
        one.rate.value = 1e-5
        yield one.html, one.message
        one.rate.value = 1e-3
        for recipe in live.recipe.options:
            one.recipe.value = recipe
            yield one.html, one.message
            for menu in one.options.values():
                own = menu.value
                for value in menu.options:
                    menu.value = value
                    yield one.html, one.message
                menu.value = own

    with monkeypatch.context() as without_torch:
        for name in ("measure", "update_reach"):
            without_torch.setattr(panel_module, name, lambda *_, **__: pytest.fail("no torch"))
        shown = [*choose(live)]
    assert shown == [*choose(panel)] and len(set(shown)) > 20
    assert not any("Nothing changed" in message for _, message in shown)


def test_what_was_not_recorded_is_said_and_the_view_stays(live):
    live.recipe.value = "o0"
    live.recipe.value = "o2"
    live.options["dtype"].value = torch.bfloat16
    before, size = live.html, live.size.options[0]
    live.options["loss_scale"].value = None
    assert live.html == before and "was not recorded for the book" in live.message
    live.options["dtype"].value = torch.float16
    assert live.html != before and not live.message
    live.size.value = size
    assert "100 million" in live.html


def test_says_where_an_option_has_nothing_to_act_on(panel):
    panel.net.value = "CharGPT"
    assert "CharGPT has no batch norm" in panel.message
    panel.recipe.value = "o1"
    assert not panel.message
