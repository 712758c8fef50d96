"""The two policies that the chapter compares, probed once for all tests."""

import pytest
import torch

from amp_course.autocast import probe_policy


@pytest.fixture(scope="session")
def cpu():
    return probe_policy("cpu", torch.bfloat16)


@pytest.fixture(scope="session")
def cuda():
    return probe_policy("cuda", torch.float16)
