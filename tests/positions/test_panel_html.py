"""The alt texts of the panel's similarity maps."""

import torch

from amp_course.bits.formats import BF16, FP16, FP32
from amp_course.positions.panel_html import describe_map
from amp_course.positions.sharing import share


def test_a_map_says_how_many_tokens_look_the_same():
    shown = share(BF16, 512)
    pairs = sum(
        run.count * (run.count - 1) // 2 for run in shown.runs
    )  # of tokens that share an id
    said = describe_map("with ids in bf16", shown.rounded, shown)
    assert said.startswith(
        "similarity map with ids in bf16, tokens 464 to 511, head size 64, base 10000: from 0."
    )
    assert said.endswith(f"; {pairs} pairs of tokens look the same")
    exact = describe_map("with exact ids", shown.right, share(FP32, 512))
    assert exact.endswith("; no two tokens look the same")


def test_a_map_says_what_is_grey():
    partly, wholly = (share(FP16, n) for n in (65_530, 2**18))
    assert describe_map("", wholly.rounded, wholly).endswith("all grey, no id has an angle")
    points = torch.tensor(partly.rounded)
    grey = int(points.isnan().sum())
    assert describe_map("", partly.rounded, partly).endswith(
        f"{grey:,} of {points.numel():,} points are grey"
    )
