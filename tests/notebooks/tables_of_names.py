"""Hold the tables of who has what under which name: recipes, causes, calls on ranks, low formats.

Each function takes the rows of one table of a chapter's Markdown, and raises AssertionError where
torch, ml_dtypes or the course's data say something else. `test_tables.py` calls them.
"""

import importlib
import inspect
import re
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from amp_course.course import CHAPTERS
from amp_course.frontiers import BLOCK_FORMATS
from amp_course.recipes import ALL, find, measure
from amp_course.recipes.phrasebook import LOW_BIT
from amp_course.speed.cards import find_card
from tests.notebooks.tables_of_values import code_names

ROOT = Path(__file__).resolve().parents[2]


CLAUSES = {  # of chapter 08's table → whether a measured row shows it
    "nothing: fp32": lambda m: (set(m.weights), m.scaling) == ({"fp32"}, "none"),
    "autocast picks each **op**'s dtype": lambda m: m.cast_copies and set(m.weights) == {"fp32"},
    "the loss is scaled dynamically": lambda m: m.scaling.startswith("dynamic"),
    "O1 in bf16": lambda m: "bf16" in m.activations and set(m.weights) == {"fp32"},
    "nothing scaled": lambda m: m.scaling == "none",
    "the **model** is half": lambda m: m.weights["fp16"] > m.weights["fp32"],
    "batch norm is not": lambda m: set(m.batch_norm) == {"fp32"},
    "the optimizer steps fp32 **master weights**": lambda m: set(m.master) == {"fp32"},
    "O2 without master weights": lambda m: not m.master and "fp16" in m.weights,
    "without fp32 batch norm": lambda m: set(m.batch_norm) == {"fp16"},
    "scale 1": lambda m: m.scaling == "static, 1",
    "`model.half()` by hand: batch norm in fp32": lambda m: set(m.batch_norm) == {"fp32"},
    "the **loss** in fp16": lambda m: loss_of(find(m.name)).dtype == torch.float16,
    "`model.bfloat16()`: everything in bf16": lambda m: {*m.weights, *m.batch_norm} == {"bf16"},
    "`PURE_BF16`": lambda m: {*m.weights, *m.batch_norm} == {"bf16"},
    "with the update of the weights **rounded stochastically**": lambda m: (
        0.1 < moved(m.name) < 0.9
    ),
}


def small_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.randn(4, 6), torch.tensor([0, 1, 2, 0])


@cache
def measured():
    return {type(one).__name__: measure(one, *small_training()) for one in ALL}


def loss_of(recipe):
    model, x, y = small_training()
    return recipe.prepare(model, torch.optim.Adam, nn.functional.cross_entropy).loss(x, y)


def moved(name):
    """Return the share of weights that an update of a quarter of an ulp of bf16 moves."""
    torch.manual_seed(0)
    model = nn.Linear(1000, 1, bias=False)
    nn.init.ones_(model.weight)
    session = find(name).prepare(
        model, lambda params: torch.optim.SGD(params, lr=2.0**-9), lambda out, _: -out.sum()
    )
    session.step(torch.ones(1, 1000), torch.zeros(1))
    return float((model.weight != 1).float().mean())


def check_recipes(rows):
    assert {code_names(row[0])[0] for row in rows[1:]} == set(measured())
    for name, changes, known_as in rows[1:]:
        (name,) = code_names(name)
        for clause in re.split("[;,] ", changes):
            assert clause in CLAUSES and CLAUSES[clause](measured()[name]), (name, clause)
        assert {*re.findall(r"\bO\d", known_as)} <= {name}, "a level of that number"
        for option in re.findall("`(bf16.*?)`", known_as):
            assert any(option in one.words["torchao"] for one in LOW_BIT.phrases)
    assert moved("pure_bf16") == 0 and loss_of(find("o3")).dtype == torch.float32


def check_causes(rows):
    rules = (ROOT / "amp_course" / "speed" / "explain").glob("*_rules.py")
    code = "".join(path.read_text("utf-8") for path in rules)
    known = (ROOT / "amp_course/speed/experiments/published.toml").read_text("utf-8")
    named = {"too little": "small-ops", "values read": "host-waits", "an fp32": "fp32-island"}
    named |= {"no fast": "slower-in-16-bits", "odd": "odd-sizes", "memory": "returned-memory"}
    named |= {"too many": "too-many-threads"}
    assert len(rows) == 1 + len(named)
    for cause, what, call in rows[1:]:
        assert f'"{next(named[one] for one in named if cause.startswith(one))}"' in code, cause
        module, function, argument = re.fullmatch(r"`(\w+)\.(\w+)\((\w*)\)`", call).groups()
        module = importlib.import_module(f"amp_course.speed.experiments.{module}")
        assert hasattr(module, function), call
        inspect.signature(getattr(module, function)).bind(*[argument] * bool(argument))
        assert all(one.rpartition("/")[2] in known for one in re.findall(r"\[([^]]+#\d+)\]", what))
        for card in re.findall(r"[GR]TX \d+", what):  # "runs it at fp32's rate"
            assert find_card(card).tera["fp16"] == find_card(card).tera["fp32"]
        for small, large in re.findall(r"([\d,]+) → ([\d,]+)", what):
            small, large = (int(one.replace(",", "")) for one in (small, large))
            assert small % 8 and large - small < 64 and large % 64 == 0


def check_ranks(rows):
    titles = {one.number: one.title for one in CHAPTERS[10].exercises()}
    taught = {"Accumulate": "accumulation", "One loss": "uneven", "Clip": "clipping"}
    taught |= {"Save once": "a checkpoint"}
    owners = {"no_sync": DistributedDataParallel, "set_requires_gradient_sync": FSDPModule}
    folder = Path(torch.__file__).parent
    files = [*folder.glob("include/torch/csrc/distributed/c10d/*.hpp")]
    files += folder.glob("distributed/*.py")
    known = "".join(path.read_text("utf-8") for path in files)
    known += "TORCH_FR_BUFFER_SIZE" * (torch.__version__ < (2, 13))  # has an older name there
    repeated = [one for rank in (0, 1) for one in DistributedSampler(range(5), 2, rank)]
    assert len(repeated) == 6 and len(set(repeated)) == 5  # "repeats samples"
    for what, words in rows[1:]:
        for number in re.findall(r"\(exercise (\d+)\)", words):
            assert what.startswith(
                next(taught[one] for one in taught if titles[int(number)].startswith(one))
            ), what
        for method in re.findall(r"`model\.(\w+)\(", words):
            assert method in owners and hasattr(owners[method], method), method
        for variable in re.findall(r"`(TORCH_\w+)", words):
            assert variable in known, variable


def check_low_formats(rows):
    book = {one.thing: one for one in LOW_BIT.phrases}
    things = {"fp8, a scale per tensor": "a scale for each tensor", "fp6, MXFP4": "MXFP6, MXFP4"}
    (torchao,) = LOW_BIT.only("torchao").libraries
    assert rows[0][1].startswith("Transformer Engine") and rows[0][3] == "torchao"
    for name, engine, amd, ao in rows[1:]:
        words = book[things.get(name, name)].words
        assert engine.startswith("none") == (words["transformer_engine"] == "none"), name
        status = ["prototype" in words["torchao"], words["torchao"].startswith("for inference")]
        assert ["a prototype" in ao, ao == "inference", "stable" in ao] == [
            *status,
            not any(status),
        ]
        for code in code_names(ao):
            assert code in words["torchao"] + " ".join(torchao.names), code
        assert (
            "emulated" not in ao or "emulate=True" in book["without the hardware"].words["torchao"]
        )
        for fmt in re.findall("MXFP8|MXFP4|NVFP4", name):
            assert any(one.name.startswith(fmt) for one in BLOCK_FORMATS)
        if "FNUZ" in amd:
            assert "other bias, no inf" in amd
            for kind, exponent in (("float8_e4m3", -6), ("float8_e5m2", -14)):
                fnuz = getattr(ml_dtypes, f"{kind}fnuz")
                assert ml_dtypes.finfo(fnuz).smallest_normal == 2.0 ** (exponent - 1)
                assert not numpy.isinf(numpy.arange(256, dtype="uint8").view(fnuz)).any()
            assert numpy.isinf(numpy.arange(256, dtype="uint8").view(ml_dtypes.float8_e5m2)).any()
