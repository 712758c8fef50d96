"""What `tools/on_gpu.sh` runs on a rented machine needs torch, scikit-learn,
matplotlib and pytest, and no Jupyter.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LACKING = [
    "IPython",
    "hypothesis",
    "ipykernel",
    "ipywidgets",
    "jupyterlab",
    "ml_dtypes",
    "nbformat",
    "nbval",
    "playwright",
]


# What the parts of tools/on_gpu.sh import
PARTS = [
    "amp_course.cli",
    "amp_course.doctor.command",
    "amp_course.speed.bench.command",
    "amp_course.speed.explain",
    "benchmarks.gpu",
]


@pytest.mark.slow
def test_the_gpu_tests_are_collected_without_jupyter_and_pytests_plugins():
    code = (
        f"import sys, pytest; sys.modules.update(dict.fromkeys({LACKING})); import "
        f"{', '.join(PARTS)};"
        "sys.exit(pytest.main(['-q', '--collect-only', '-m', 'gpu', '-p', 'no:cacheprovider']))"
    )
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(found) > 20 and all(line.startswith("tests/gpu/") for line in found)
