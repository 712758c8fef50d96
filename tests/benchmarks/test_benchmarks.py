"""Try the benchmarks out at a tiny size: the records' shape, not the times in them.

One runs as a reader runs it, the others in this process, which has imported torch already.
"""

import contextlib
import importlib
import io
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from amp_course.frontiers.experiments import OPTIMIZERS, VARIANTS, load_trainings
from amp_course.recipes.survival import load_survival
from benchmarks.tables import tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("one_thread")]

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--tiny", "--device", "cpu", "--rounds", "2", "--steps", "2", "--usual-malloc"]
SPREAD = {"median", "q1", "q3"}


def run(name: str, *arguments: object) -> str:
    """Call a benchmark's `main`; return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = importlib.import_module(f"benchmarks.{name}").main([*map(str, arguments)])
    assert code == 0, printed.getvalue()
    return printed.getvalue()


def written(folder: Path, name: str) -> Any:
    (path,) = folder.glob(f"{name}-cpu-*.json")
    return json.loads(path.read_text())


def record(folder: Path, name: str) -> Any:
    found = written(folder, name)
    (path,) = folder.glob(f"{name}-cpu-*.json")
    assert found["benchmark"] == name
    assert path.stem.endswith(found["date"][:10])
    assert found["machine"]["device"] == "cpu"
    assert found["versions"]["torch"]
    assert found["settings"]["tiny"] and found["settings"]["rounds"] == 2
    assert list(found["workloads"]) == ["simple_net", "char_gpt"]
    for workload in found["workloads"].values():
        assert list(workload["recipes"])[:2] == ["fp32", "amp_bf16"]
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def test_timer(results: Path) -> None:
    arguments = [*SMALL, "--threads", "1", "--out", str(results)]
    command = [sys.executable, "-m", "benchmarks.timer", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0 and "StepTimer" in done.stdout, done.stdout + done.stderr
    found = record(results, "timer")
    assert found["start_stop_seconds"]["median"] > 0
    for workload in found["workloads"].values():
        for recipe in workload["recipes"].values():
            assert set(recipe["cost"]) == set(recipe["bare_seconds_per_step"]) == SPREAD
            assert recipe["defaults"]["steps"] > 0


def test_peers_train_alike_and_are_drawn(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason='needs pip install -e ".[peers]"')
    pytest.importorskip("lightning_fabric", reason='needs pip install -e ".[peers]"')
    run("peers", *SMALL, "--out", results)
    for workload in record(results, "peers")["workloads"].values():
        for recipe in workload["recipes"].values():
            assert recipe["losses"]["same"]
            assert recipe["ratio"]["over"] in ("accelerate", "fabric")
            for side in recipe["sides"].values():
                assert len(side["seconds_per_step"]) == 2
                assert set(side["steps_per_second"]) == SPREAD
            assert set(recipe["over_fp32_course"]) == {"course", "accelerate", "fabric"}

    image, readme = tmp_path / "benchmark.png", tmp_path / "README.md"
    readme.write_text((ROOT / "benchmarks" / "README.md").read_text())
    run("figure", "--results", results, "--image", image, "--readme", readme)
    assert image.stat().st_size > 10_000
    assert readme.read_text().count("| AMP bf16 |") >= 2


@pytest.fixture(scope="module")
def for_a_gpu(results: Path) -> str:
    """Everything that benchmarks.gpu runs, on the CPU: what it printed;
    its records are in `results`.
    """
    return run("gpu", *SMALL, "--out", results)


@pytest.mark.usefixtures("for_a_gpu")
def test_rounding_agrees_with_its_peers(results: Path) -> None:
    pytest.importorskip("gfloat", reason='needs pip install -e ".[peers]"')
    found = written(results, "rounding")["workloads"]
    assert list(found) == ["fp16", "bf16", "fp8 E5M2", "fp8 E4M3"]
    for values in found.values():
        assert values["same_results"]
        assert values["best_gfloat"] in values["course_over"]
        assert set(values["course_over"]["torch cast"]) == SPREAD


def test_scaler_ends_as_pytorchs_does(results: Path) -> None:
    assert "the scaler alone" in run("scaler", *SMALL, "--out", results)
    found = written(results, "scaler")["workloads"]
    assert list(found) == ["the scaler alone", "a whole step with AdamW"]
    for values in found.values():
        assert values["same_results"] and values["parameters"] == 2 * (16 * 16 + 16)
        assert set(values["cost"]) == set(values["seconds"]["course"]) == SPREAD


@pytest.mark.usefixtures("for_a_gpu")
def test_recipes_class_ends_as_the_plain_cells_do(results: Path) -> None:
    found = written(results, "recipes")["workloads"]
    assert list(found) == ["SimpleNet", "SimpleNet in fp16", "next to nothing"]
    for values in found.values():
        assert values["same_results"]
        assert set(values["cost"]) == set(values["extra_seconds"]) == SPREAD


def test_everything_for_a_gpu_runs_in_one_call(results: Path, for_a_gpu: str) -> None:
    said = for_a_gpu
    assert "report card done" in said and "recipes     done" in said and "rounding    done" in said
    assert "gfloat on torch" in said or not find_spec("gfloat")
    (path,) = results.glob("report_card-cpu-*.json")
    found = json.loads(path.read_text())
    assert found["workloads"]["simple_net"][0]["recipe"] == "fp32" and found["paragraph"]
    assert path.with_suffix(".png").stat().st_size > 10_000


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 1 and "finds none here" in done.stderr
    assert not list(tmp_path.iterdir())


def test_survival_map_can_be_read_back(tmp_path: Path) -> None:
    few = ["--settings", "raw_sum", "--recipes", "o1", "o3", "--sizes", 512, "--seeds", 1]
    assert "o3              512  dies at 0" in run("survival", *few, "--out", tmp_path)
    (path,) = tmp_path.glob("survival-cpu-*.json")
    found = load_survival(path)
    assert found.deaths("raw_sum", "o3") == {512: 1} and not found.deaths("raw_sum", "o1")


def test_the_auditor_accuses_nobody(results: Path) -> None:
    assert "may take" in run("auditor", *SMALL, "--rounds", 1, "--steps", 1, "--out", results)
    found = written(results, "auditor")["workloads"]
    assert list(found) == ["AMP fp16", "AMP bf16", "fp32"]
    for values in found.values():
        assert values["faults"] == [] and values["limit_seconds"] >= 2
        assert set(values["seconds"]["audit"]) == set(values["steps"]) == SPREAD


def test_the_watches_of_chapter_11_change_nothing(results: Path) -> None:
    assert "watch_ranges" in run("debugging", *SMALL, "--out", results)
    found = written(results, "debugging")["workloads"]
    assert len(found) == 3
    for values in found.values():
        assert values["same_results"]
        assert set(values["times_plain"]) == {"first_nonfinite", "watch_ranges"}


def test_launchers_are_started_in_turn(results: Path) -> None:
    assert "| torchrun |" in run("launchers", *SMALL, "--rounds", 1, "--out", results)
    found = written(results, "launchers")
    assert set(found["launchers"]["seconds"]) == {"torchrun", "spawn", "by hand"}
    assert "**Start-up**" in tables({"launchers": [found]})


def test_explain_tries_planted_causes(results: Path) -> None:
    assert "planted causes named first" in run("explain", *SMALL, "--out", results)
    found = written(results, "explain")
    assert len(found["planted"]) == 3 and len(found["workloads"]) == 1
    for tried in found["planted"].values():
        assert sum(tried["kinds"].values()) == pytest.approx(tried["explained_seconds"])
        expected = {*tried["expected"]}
        assert tried["first_is_planted"] == bool(expected & {*tried["named"][:1]})
        assert tried["fixed_is_accused"] == bool(expected & {*tried["named_when_fixed"]})
    shown = tables({"explain": [found]})
    assert "Planted causes" in shown and "Predicted speed-up" in shown


def test_blocks_are_gfloats(results: Path) -> None:
    assert "times as fast" in run("blocks", *SMALL, "--out", results)
    found = written(results, "blocks")["workloads"]
    assert len(found) == 5
    for values in found.values():
        assert values["same_results"] and set(values["times_as_fast"]) == SPREAD


def test_trainings_below_16_bits_are_recorded(results: Path) -> None:
    assert "MXFP4" in run("low_bits", "--seeds", 1, "--steps", 2, "--out", results)
    (path,) = results.glob("low_bits-cpu-*.json")
    found = load_trainings(path)
    names = {one.name for one in (*VARIANTS, *OPTIMIZERS)}
    assert {run.variant for run in found["gpt"].runs} == names
    assert len({run.variant for run in found["resnet"].runs}) == len(VARIANTS) + 4
