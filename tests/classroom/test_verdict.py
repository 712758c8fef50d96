"""A verdict counts only if it is sealed with the key, for the question that was asked."""

import dataclasses
import gc
import json

import pytest

from amp_course.classroom.verdict import Seal, Verdict

VERDICT = Verdict(
    "loop.add_autocast",
    "not yet",
    "why",
    "bf16",
    ("a note",),
    ("Exercise.check",),
    ("gradebook.db",),
)


def test_there_and_back() -> None:
    assert Seal(b"key").open(Seal(b"key").close(VERDICT, "q1"), "q1") == VERDICT


@pytest.mark.parametrize(
    "change",
    ["other key", "other question", "other state", "no seal", "no text", "numbers", "not ascii"],
)
def test_what_is_not_its_own(change: str) -> None:
    seal = Seal(b"key")
    content = (
        dict(Seal(b"other").close(VERDICT, "q1"))
        if change == "other key"
        else dict(seal.close(VERDICT, "q1"))
    )
    better = json.dumps(dataclasses.asdict(dataclasses.replace(VERDICT, state="correct")))
    changed = {
        "other state": {"verdict": better},
        "no seal": {"seal": None},
        "no text": {"verdict": None},
        "numbers": {"verdict": 1, "seal": 2},
        "not ascii": {"seal": "ü" * 64},
    }
    content |= changed.get(change, {})  # type: ignore[arg-type]
    assert seal.open(content, "q2" if change == "other question" else "q1") is None


def test_the_key_is_nowhere_to_be_read() -> None:
    seal = Seal(bytes.fromhex("00112233445566778899aabbccddeeff" * 2))
    assert not hasattr(seal, "__dict__")
    assert "00112233" not in repr(gc.get_referents(seal))
