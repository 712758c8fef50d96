"""The phrasebook: each library has a loop and a word for everything, PyTorch's own loops run,
the comparison finds faults.
"""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from amp_course.recipes import phrasebook
from amp_course.recipes.phrasebook import AMP, LOW_BIT

ROOT = Path(__file__).parents[3]
SLUGS = [library.slug for library in AMP.libraries]
PINS = dict(
    line.split("==")
    for line in (ROOT / "tools/phrasebook-constraints.txt").read_text().splitlines()
    if "==" in line
)


@pytest.fixture
def tools(monkeypatch):
    """tools/phrasebook.py and tools/phrasebook_run.py, which import their neighbours by name."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    yield importlib.import_module("phrasebook"), importlib.import_module("phrasebook_run")
    for name in ("phrasebook", "phrasebook_run", "install"):
        sys.modules.pop(name, None)


def test_the_libraries_are_those_of_the_chapter():
    assert SLUGS == [
        "torch_amp",
        "torch_cuda_amp",
        "apex",
        "colossalai",
        "paddle",
        "accelerate",
        "fabric",
    ]


def test_each_library_has_a_word_for_everything():
    assert len(AMP.phrases) == len({phrase.thing for phrase in AMP.phrases}) >= 12
    for phrase in AMP.phrases:
        assert list(phrase.words) == SLUGS
        assert all(words.strip() for words in phrase.words.values())
        assert all(words.count("`") % 2 == 0 for words in phrase.words.values())


@pytest.mark.parametrize("library", AMP.libraries, ids=SLUGS)
def test_each_library_is_run_or_says_why_not(library):
    assert library.source.startswith("https://") and library.version
    assert bool(library.on_cpu) != bool(library.not_run)
    assert bool(library.on_cpu) == bool(library.names)


def test_apex_and_colossalai_are_the_ones_not_run():
    assert [library.slug for library in AMP.libraries if library.not_run] == ["apex", "colossalai"]


@pytest.mark.parametrize("library", AMP.libraries, ids=SLUGS)
def test_each_loop_compiles_and_stands_alone(library):
    compile(library.loop, f"{library.slug}_loop.py", "exec")
    assert re.search(r"def train\(\s*model: nn\.", library.loop)
    assert "amp_course" not in library.loop
    assert len(library.loop.splitlines()) <= 50


def test_no_loop_is_without_a_library():
    files = {path.name for path in (Path(phrasebook.__file__).parent / "loops").glob("*_loop.py")}
    with_loops = [*SLUGS, *(one.slug for one in LOW_BIT.libraries if one.loop)]
    assert files == {f"{slug}_loop.py" for slug in with_loops}


@pytest.mark.parametrize(
    "library", [one for one in AMP.libraries if one.names], ids=lambda one: one.slug
)
def test_names_to_look_up_are_names_that_are_used(library):
    """A name that is looked up stands in the table or in the loop;
    so what is looked up is what readers copy.
    """
    used = library.loop + " ".join(phrase.words[library.slug] for phrase in AMP.phrases)
    for name in library.names:
        assert re.search(rf"\b{name.split('.')[-1]}\b", used), name


def test_the_versions_described_are_those_installed():
    pins = {
        "torch_amp": "torch",
        "accelerate": "accelerate",
        "fabric": "lightning-fabric",
        "paddle": "paddlepaddle",
    }
    for slug, package in pins.items():
        (library,) = [one for one in AMP.libraries if one.slug == slug]
        assert PINS[package] in library.version


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_torch_loop_computes_in_what_it_says_and_learns(tools, precision):
    _, run = tools
    found = run.run("torch_amp", precision)
    assert found["dtypes"] == [AMP.libraries[0].on_cpu[precision]]
    assert len(found["losses"]) == run.STEPS and found["losses"][-1] < found["losses"][0] / 2
    assert not found["refused"] and not found["said"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_old_names_train_in_fp32_without_a_gpu_and_say_so(tools, precision):
    if torch.cuda.is_available():
        pytest.skip("with a GPU the old names do what they say")
    _, run = tools
    old, plain = run.run("torch_cuda_amp", precision), run.run("torch_amp", "fp32")
    assert old["dtypes"] == ["float32"] and old["losses"] == plain["losses"]
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (
        2,
        13,
    ):  # what the phrasebook describes; 2.6 does not say it of bf16
        assert any("Disabling autocast" in message for message in old["said"])
    assert any("deprecated" in message for message in old["said"])


def test_the_torch_loop_equals_one_written_out_here(tools):
    _, run = tools
    model, batches = run.torch_problem(set())
    copy = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    copy.load_state_dict(model.state_dict())
    expected = []
    for inputs, targets in batches[:10]:
        loss = nn.functional.cross_entropy(copy(inputs), targets)
        gradients = torch.autograd.grad(loss, list(copy.parameters()))
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt().item()
        with torch.no_grad():
            for parameter, gradient in zip(copy.parameters(), gradients, strict=True):
                parameter -= 0.5 * gradient * min(1.0, 1.0 / norm)
        expected.append(loss.item())
    assert run.load_loop("torch_amp").train(model, batches[:10], "fp32") == pytest.approx(
        expected, rel=1e-5
    )


def test_names_are_looked_up(tools):
    _, run = tools
    assert run.missing(
        [
            "torch.amp.autocast",
            "torch.amp.GradScaler.unscale_",
            "torch.amp.autocat",
            "nowhere.at.all",
        ]
    ) == [
        "torch.amp.autocat",
        "nowhere.at.all",
    ]


def fake(losses, dtype, setting, **more):
    return {
        "setting": setting,
        "losses": losses,
        "dtypes": [dtype],
        "said": [],
        "refused": "",
    } | more


LOSSES = {"float32": [2.0, 0.5], "bfloat16": [2.01, 0.51], "float16": [2.001, 0.501]}
ASKED = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def reports():
    """What all would report that agree."""
    return {
        library.slug: {
            "version": next(
                PINS[name] for name in ("torch", *PINS) if PINS[name] in library.version
            ),
            "missing": [],
            "runs": [
                fake(LOSSES[dtype], dtype, setting) for setting, dtype in library.on_cpu.items()
            ],
        }
        for library in AMP.libraries
        if library.on_cpu
    }


def test_sides_that_agree_pass(tools, capsys):
    main, _ = tools
    assert main.report(reports()) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("All agree.\n") and "not run: it needs CUDA" in printed
    (silent,) = [
        line for line in printed.splitlines() if line.startswith("Accelerate") and "fp16" in line
    ]
    assert silent.endswith("nothing")


def one_bit_apart(found):
    found["accelerate"]["runs"][1]["losses"] = [2.01, 0.5100001]


def another_dtype(found):
    found["paddle"]["runs"][1] = fake(LOSSES["bfloat16"], "bfloat16", "bf16")


def paddle_apart(found):
    found["paddle"]["runs"][0]["losses"] = [2.0, 0.5001]


def refused(found):
    found["fabric"]["runs"][2] |= {"losses": [], "dtypes": [], "refused": "ValueError: no"}


def failed(found):
    found["fabric"] = {"failed": "ModuleNotFoundError: No module named 'lightning_fabric'"}


def plain_failed(found):
    found["torch_amp"] = {"failed": "no torch"}


def name_gone(found):
    found["paddle"]["missing"] = ["paddle.amp.decorate"]


def another_version(found):
    found["paddle"]["version"] = "4.0.0"


def did_not_learn(found):
    found["torch_amp"]["runs"][0]["losses"] = [2.0, 1.9]


def cannot_be_told_apart(found):
    found["torch_amp"]["runs"][1]["losses"] = LOSSES["float32"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (one_bit_apart, "Accelerate, asked for bf16, has losses 2e-07 apart"),
        (
            another_dtype,
            "Paddle, asked for bf16, computed in bfloat16, and the phrasebook says float32",
        ),
        (paddle_apart, "Paddle, asked for fp32, has losses 0.0002 apart"),
        (refused, "Lightning Fabric, asked for fp16, refused: ValueError: no"),
        (failed, "Lightning Fabric could not be run: ModuleNotFoundError"),
        (plain_failed, "the plain torch.amp loop failed: no torch"),
        (name_gone, "Paddle has no paddle.amp.decorate"),
        (another_version, "Paddle is 4.0.0 here"),
        (did_not_learn, "in float32 did not learn"),
        (cannot_be_told_apart, "equal losses prove nothing"),
    ],
)
def test_each_fault_is_found(tools, capsys, spoil, words):
    main, _ = tools
    found = reports()
    spoil(found)
    assert main.report(found) == 1
    assert words in capsys.readouterr().err


def test_it_shows_some_side_by_side():
    shown = AMP.only("torch_amp", "apex")
    text, html = repr(shown), shown._repr_html_()
    assert (
        "amp.scale_loss" in text
        and "auto_cast" not in text
        and "not run, because it needs CUDA" in text
    )
    assert (
        html.count("<th ") == 2 + len(AMP.phrases)
        and "<code>amp.<wbr>state_<wbr>dict()</code>" in html
    )
    assert max(map(len, repr(AMP).splitlines()[: -len(AMP.libraries)])) <= 110
    with pytest.raises(
        ValueError, match="no library is called 'mxnet': the phrasebook has torch_amp,"
    ):
        AMP.only("mxnet")


@pytest.fixture
def clone(tools, monkeypatch, tmp_path):
    """The set-up pointed at an empty folder, with pip and venv replaced by notes of what they
    were asked for.
    """
    main, _ = tools
    install, asked = sys.modules["install"], []
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/phrasebook-constraints.txt").write_text("torch==2.13.0\n")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "check_folder", lambda: None)
    monkeypatch.setattr(install, "forget_half_written", lambda: None)
    main.use_own_environment()

    def make_venv():
        asked.append("venv")
        install.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        install.PYTHON.touch()

    monkeypatch.setattr(install, "make_venv", make_venv)
    monkeypatch.setattr(install, "pip", lambda *arguments: asked.append(arguments))
    return main, install, asked


def test_the_environment_is_made_once_and_used_again(clone):
    main, install, asked = clone
    main.set_up("")
    assert install.VENV.name == ".venv-phrasebook"
    assert asked == ["venv", ("-c", str(install.CONSTRAINTS), *main.PACKAGES)]
    main.set_up("")
    assert len(asked) == 2
    install.CONSTRAINTS.write_text("torch==2.14.0\n")
    main.set_up("")
    assert len(asked) == 4


def test_torch_comes_from_the_index_that_was_asked_for(clone):
    main, _, asked = clone
    main.set_up("https://example.org/cpu")
    assert asked[1] == ("--index-url", "https://example.org/cpu", "torch==2.13.0")


def test_a_set_up_that_fails_ends_in_one_line_and_is_taken_up_again(clone, monkeypatch, capsys):
    main, install, asked = clone

    def no_network(*arguments):
        raise install.Stop("the package index cannot be reached.")

    main.set_up("")
    pins = install.CONSTRAINTS.read_text()
    install.CONSTRAINTS.write_text("torch==2.14.0\n")
    with monkeypatch.context() as without:
        without.setattr(install, "pip", no_network)
        without.setattr(sys, "argv", ["phrasebook.py"])
        assert main.main() == 1
    assert capsys.readouterr().err.strip() == "phrasebook: the package index cannot be reached."
    install.CONSTRAINTS.write_text(
        pins
    )  # what was there is half replaced by now, whatever the pins say
    before = len(asked)
    main.set_up("")
    assert asked[-1][0] == "-c" and len(asked) > before


def test_a_library_that_cannot_be_imported_is_named(tools, monkeypatch):
    main, _ = tools
    install = sys.modules["install"]
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    (paddle,) = [library for library in AMP.libraries if library.slug == "paddle"]
    if importlib.util.find_spec("paddle"):
        pytest.skip("Paddle is installed here")
    assert main.run(paddle) == {"failed": "ModuleNotFoundError: No module named 'paddle'"}
