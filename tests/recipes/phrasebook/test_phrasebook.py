"""The phrasebook: each library has a loop and a word for everything, PyTorch's own loops run,
the comparison finds faults.
"""

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
WITH_LOOPS = [one for one in (*AMP.libraries, *LOW_BIT.libraries) if one.loop]
PINS = dict(
    line.split("==")
    for line in (ROOT / "tools/phrasebook-constraints.txt").read_text().splitlines()
    if "==" in line
)


def test_each_library_has_a_word_for_everything():
    assert len(AMP.phrases) == len({phrase.thing for phrase in AMP.phrases}) >= 12
    for phrase in AMP.phrases:
        assert list(phrase.words) == SLUGS
        assert all(words.strip() for words in phrase.words.values())
        assert all(words.count("`") % 2 == 0 for words in phrase.words.values())
    for library in AMP.libraries:
        assert library.source.startswith("https://") and library.version
        assert bool(library.on_cpu) == bool(library.names) != bool(library.not_run)
    assert [one.slug for one in AMP.libraries if one.not_run] == ["apex", "colossalai"]


@pytest.mark.parametrize("library", WITH_LOOPS, ids=lambda library: library.slug)
def test_each_loop_compiles_and_stands_alone(library):
    compile(library.loop, f"{library.slug}_loop.py", "exec")
    assert re.search(r"def train\(\s*model: nn\.", library.loop)
    assert "amp_course" not in library.loop
    assert len(library.loop.splitlines()) <= 50


def test_no_loop_is_without_a_library():
    files = {path.name for path in (Path(phrasebook.__file__).parent / "loops").glob("*_loop.py")}
    assert files == {f"{library.slug}_loop.py" for library in WITH_LOOPS}
    assert {*SLUGS, "torchao"} < {library.slug for library in WITH_LOOPS}


@pytest.mark.parametrize("book", [AMP, LOW_BIT], ids=["16 bits", "below"])
def test_names_to_look_up_are_names_that_are_used(book):
    """A name that is looked up is in the table or in the loop;
    so what is looked up is what people copy.
    """
    names = [(library, name) for library in book.libraries for name in library.names]
    for library, name in names:
        used = library.loop + " ".join(phrase.words[library.slug] for phrase in book.phrases)
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
def test_the_torch_loop_computes_in_what_it_says_and_learns(load, precision):
    run = load("phrasebook_run")
    found = run.run("torch_amp", precision)
    assert found["dtypes"] == [AMP.libraries[0].on_cpu[precision]]
    assert len(found["losses"]) == run.STEPS and found["losses"][-1] < found["losses"][0] / 2
    assert not found["refused"] and not found["said"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_old_names_train_in_fp32_without_a_gpu_and_say_so(load, precision):
    if torch.cuda.is_available():
        pytest.skip("with a GPU the old names do what they say")
    run = load("phrasebook_run")
    old, plain = run.run("torch_cuda_amp", precision), run.run("torch_amp", "fp32")
    assert old["dtypes"] == ["float32"] and old["losses"] == plain["losses"]
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):  # 2.6 is silent about bf16
        assert any("Disabling autocast" in message for message in old["said"])
    assert any("deprecated" in message for message in old["said"])


def test_the_torch_loop_equals_one_written_out_here(load):
    run = load("phrasebook_run")
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
    found = run.load_loop("torch_amp").train(model, batches[:10], "fp32")
    assert found == pytest.approx(expected, rel=1e-5)


def test_names_are_looked_up(load):
    run = load("phrasebook_run")
    there = ["torch.amp.autocast", "torch.amp.GradScaler.unscale_"]
    gone = ["torch.amp.autocat", "nowhere.at.all"]
    assert run.missing(there + gone) == gone


def fake(losses, dtype, setting, **more):
    run = {"setting": setting, "losses": losses, "dtypes": [dtype], "said": [], "refused": ""}
    return run | more


LOSSES = {"float32": [2.0, 0.5], "bfloat16": [2.01, 0.51], "float16": [2.001, 0.501]}


def reports():
    """What all would report that agree."""
    found = {}
    for library in AMP.libraries:
        if library.on_cpu:
            version = next(pin for pin in (PINS["torch"], *PINS.values()) if pin in library.version)
            runs = [fake(LOSSES[dtype], dtype, asked) for asked, dtype in library.on_cpu.items()]
            found[library.slug] = {"version": version, "missing": [], "runs": runs}
    return found


def test_sides_that_agree_pass(load, capsys):
    main = load("phrasebook")
    assert main.report(reports()) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("All agree.\n") and "not run: it needs CUDA" in printed
    (silent,) = re.findall(r"Accelerate.*fp16.*", printed)
    assert silent.endswith("nothing")


BF16 = LOSSES["bfloat16"]
REFUSED = {"losses": [], "dtypes": [], "refused": "ValueError: no"}
CLOSE = ("accelerate", 1, {"losses": [2.01, 0.5100001]})
IN_BF16 = ("paddle", 1, fake(BF16, "bfloat16", "bf16"))
FAULTS = {  # what is found → what is set in a report: library, run (or None: all of it), values
    "Accelerate, asked for bf16, has losses 2e-07 apart": CLOSE,
    "Paddle, asked for bf16, computed in bfloat16, and the phrasebook says float32": IN_BF16,
    "Paddle, asked for fp32, has losses 0.0002 apart": ("paddle", 0, {"losses": [2.0, 0.5001]}),
    "Lightning Fabric, asked for fp16, refused: ValueError: no": ("fabric", 2, REFUSED),
    "Lightning Fabric could not be run: No module": ("fabric", None, {"failed": "No module"}),
    "the plain torch.amp loop failed: no torch": ("torch_amp", None, {"failed": "no torch"}),
    "Paddle has no paddle.amp.decorate": ("paddle", None, {"missing": ["paddle.amp.decorate"]}),
    "Paddle is 4.0.0 here": ("paddle", None, {"version": "4.0.0"}),
    "in float32 did not learn": ("torch_amp", 0, {"losses": [2.0, 1.9]}),
    "equal losses prove nothing": ("torch_amp", 1, {"losses": LOSSES["float32"]}),
}


@pytest.mark.parametrize("words", FAULTS)
def test_each_fault_is_found(load, capsys, words):
    main, found = load("phrasebook"), reports()
    slug, number, values = FAULTS[words]
    spoiled = found[slug] if number is None else found[slug]["runs"][number]
    spoiled |= values
    assert main.report(found) == 1
    assert words in capsys.readouterr().err


def test_it_shows_some_side_by_side():
    shown = AMP.only("torch_amp", "apex")
    text, html = repr(shown), shown._repr_html_()
    assert "amp.scale_loss" in text and "auto_cast" not in text
    assert "not run, because it needs CUDA" in text
    assert html.count("<th ") == 2 + len(AMP.phrases)
    assert "<code>amp.<wbr>state_<wbr>dict()</code>" in html
    assert max(map(len, repr(AMP).splitlines()[: -len(AMP.libraries)])) <= 110


@pytest.fixture
def clone(load, monkeypatch, tmp_path):
    """The set-up pointed at an empty folder, with pip and venv replaced by a list of their
    calls.
    """
    main = load("phrasebook")
    install, calls = sys.modules["install"], []
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/phrasebook-constraints.txt").write_text("torch==2.13.0\n")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "check_folder", lambda: None)
    monkeypatch.setattr(install, "forget_half_written", lambda: None)
    main.use_own_environment()

    def make_venv():
        calls.append("venv")
        install.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        install.PYTHON.touch()

    monkeypatch.setattr(install, "make_venv", make_venv)
    monkeypatch.setattr(install, "pip", lambda *arguments: calls.append(arguments))
    return main, install, calls


def test_the_environment_is_made_once_and_used_again(clone):
    main, install, calls = clone
    main.set_up("")
    assert install.VENV.name == ".venv-phrasebook"
    assert calls == ["venv", ("-c", str(install.CONSTRAINTS), *main.PACKAGES)]
    main.set_up("")
    assert len(calls) == 2
    install.CONSTRAINTS.write_text("torch==2.14.0\n")
    main.set_up("https://example.org/cpu")
    assert calls[3] == ("--index-url", "https://example.org/cpu", "torch==2.14.0")


def test_a_set_up_that_fails_ends_in_one_line_and_is_taken_up_again(clone, monkeypatch, capsys):
    main, install, calls = clone

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
    before = len(calls)
    main.set_up("")
    assert calls[-1][0] == "-c" and len(calls) > before


def test_a_library_that_cannot_be_imported_is_named(load, monkeypatch):
    main = load("phrasebook")
    install = sys.modules["install"]
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    (paddle,) = [library for library in AMP.libraries if library.slug == "paddle"]
    if importlib.util.find_spec("paddle"):
        pytest.skip("Paddle is installed here")
    assert main.run(paddle) == {"failed": "ModuleNotFoundError: No module named 'paddle'"}
