import pytest
import torch

from amp_course.loop import AMP_BF16, AMP_FP16, FP32, TF32, find_recipe
from amp_course.loop.recipe import recipes_for


@pytest.mark.parametrize("name", ["amp_fp16", "amp-fp16", "AMP fp16"])
def test_names_may_be_written_as_people_write_them(name):
    assert find_recipe(name) is AMP_FP16


def test_only_fp16_is_scaled():
    assert [r.name for r in (FP32, TF32, AMP_FP16, AMP_BF16) if r.scaled] == ["amp_fp16"]


def test_tf32_is_for_cuda():
    assert TF32 not in recipes_for(torch.device("cpu"))
    assert TF32 in recipes_for(torch.device("cuda"))


def test_precision_means_what_it_says_and_is_put_back():
    def now():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = now()
    with TF32.precision():
        assert now() == ("high", True)
    with pytest.raises(RuntimeError, match="inside"), FP32.precision():
        assert now() == ("highest", False)
        raise RuntimeError("inside")
    assert now() == before
