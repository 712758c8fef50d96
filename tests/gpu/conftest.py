"""What only a GPU shows. These tests need torch, numpy, scikit-learn, scipy, matplotlib, tqdm and
pytest, and no Jupyter.

    pytest -m gpu

They skip where there is no CUDA device. Each compares with something independent: float64 on the
CPU, the CUDA allocator, `torch.amp.GradScaler`, `torch.autocast`, `torch.utils.benchmark`.
"""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
            )


@pytest.fixture
def device():
    return torch.device("cuda")


@pytest.fixture
def tensor_cores():
    """Skip on a GPU older than Ampere: no TF32, no bf16 in its matrix units."""
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < (8, 0):
        pytest.skip(f"compute capability {major}.{minor} has neither TF32 nor native bf16")


@pytest.fixture
def deterministic(monkeypatch):
    """Make equal runs equal to the last bit, as far as torch can."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)
