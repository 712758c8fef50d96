"""`tools/check.py`, which runs all checks: it says what it does, and a part that fails stops it."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("check", Path(__file__).parents[1] / "tools" / "check.py")
OK, FAILS = ["-c", "print('fine')"], ["-c", "print('broken'); raise SystemExit(3)"]


@pytest.fixture
def check(monkeypatch):
    module = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(module)
    monkeypatch.setattr(module, "QUICK", {"one": ("the first", OK), "two": ("the second", FAILS)})
    monkeypatch.setattr(module, "PARTS", {"three": ("the third", FAILS), "four": ("the fourth", OK)})
    monkeypatch.setattr(module, "ON_DEMAND", {"six": ("the sixth", OK)})
    return module


def test_all_that_is_named_runs(check, capfd):
    assert check.main(["one", "four"]) == 0
    out = capfd.readouterr().out
    assert (
        "== one: the first" in out and "== four: the fourth (1 of 1" in out and out.count("fine") == 1
    )  # the quick one is not quoted
    assert out.splitlines()[-1].startswith("All passed: one 0 s, four 0 s; ")


def test_what_fails_stops_what_comes_after_it_and_is_named(check, capfd):
    assert check.main([]) == 1
    out = capfd.readouterr().out
    assert "broken" in out and "== one" in out and "fine" not in out  # the quick ones all run; what passed says no more
    assert "three" not in out and out.splitlines()[-1].startswith("FAILED in two: ")
    assert check.main(["one", "three", "four"]) == 1
    out = capfd.readouterr().out
    assert "four" not in out and "FAILED in three: one 0 s, three 0 s; " in out


def test_what_is_on_demand_runs_only_if_it_is_named(check, capfd):
    check.QUICK.clear()
    check.PARTS.pop("three")
    assert check.main([]) == 0
    assert "six" not in capfd.readouterr().out
    assert check.main(["six"]) == 0
    assert "== six: the sixth (1 of 1" in capfd.readouterr().out


def test_dots_are_not_printed_and_what_failed_is(check, capfd):
    lines = [
        "bringing up nodes...",
        "..s.F    [ 50%]",
        "....",
        "= FAILURES =",
        "",
        "E  1 == 2",
        "1 failed, 8 passed in 3 s",
    ]
    check.PARTS["three"] = ("the third", ["-c", f"print(*{lines}, sep='\\n'); raise SystemExit(1)"])
    assert check.main(["three"]) == 1
    heading, *out = capfd.readouterr().out.splitlines()
    assert heading.startswith("== three") and out[:4] == lines[3:]


def test_an_unknown_part_is_refused_and_the_parts_are_listed(check, capfd):
    assert check.main(["one", "five"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err == "There is no part named five; the parts are one, two, three, four, six.\n"
