"""Steps written in words are the Python that they stand for, whatever holds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit.written import HOLDERS, SOUND, lines_of, live, make


def test_words_stand_for_lines_and_keep_their_block() -> None:
    assert lines_of("forward / 2; backward\nif last: step; n += 1\nelse: return") == [
        "with half():",
        "    loss = criterion(model(x), y) / 2",
        "scaler.scale(loss).backward()",
        "if last:",
        "    scaler.step(optimizer)",
        "    n += 1",
        "else:",
        "    return",
    ]


@pytest.mark.parametrize("holder", ["function", *HOLDERS[:-1]])
def test_a_step_keeps_what_it_counts_where_its_style_says(holder: str) -> None:
    case: dict[str, Any] = {
        "style": holder,
        "before": "calls = 0",
        "step": "global calls; calls += 1",
    }
    step, _, _ = make("counts", case, SOUND)
    for _ in range(3):
        step(None, None)
    assert (vars(step) if holder == "callable object" else live(step))["calls"] == 3


def test_what_a_case_names_itself_comes_before_the_parts() -> None:
    step, _, _ = make("own", {"before": "half = 7", "step": "return half"}, SOUND)
    assert step(None, None) == 7
