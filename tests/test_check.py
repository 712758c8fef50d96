"""`tools/check.py`, which runs all checks: it says what it does, and a part that fails stops it."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location(
    "check", Path(__file__).parents[1] / "tools" / "check.py"
)
OK, FAILS = ["-c", "print('fine')"], ["-c", "print('broken'); raise SystemExit(3)"]


@pytest.fixture
def check(monkeypatch):
    module = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(module)
    monkeypatch.setattr(module, "QUICK", {"one": ("the first", OK), "two": ("the second", FAILS)})
    monkeypatch.setattr(
        module, "PARTS", {"three": ("the third", FAILS), "four": ("the fourth", OK)}
    )
    monkeypatch.setattr(module, "ON_DEMAND", {"six": ("the sixth", OK)})
    return module


def test_all_that_is_named_runs(check, capfd):
    assert check.main(["one", "four"]) == 0
    out = capfd.readouterr().out
    assert (
        "== one: the first" in out
        and "== four: the fourth (1 of 1" in out
        and out.count("fine") == 1
    )  # the quick one is not quoted
    assert out.splitlines()[-1].startswith("All passed: one 0 s, four 0 s; ")


def test_what_fails_stops_what_comes_after_it_and_is_named(check, capfd):
    assert check.main([]) == 1
    out = capfd.readouterr().out
    assert (
        "broken" in out and "== one" in out and "fine" not in out
    )  # the quick ones all run; what passed says no more
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
    assert (
        out == ""
        and err == "There is no part named five; the parts are one, two, three, four, six.\n"
    )


# Each test passes from the time on that is its name, counted by its runs in a file.
COUNTED = """
import pathlib, pytest

@pytest.mark.parametrize("needed", {needed})
def test_it(needed):
    runs = pathlib.Path(__file__).with_name(f"runs {{needed}}")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) >= needed
"""


def counted(check, folder, name, needed):
    """Add a part whose tests need so many runs to pass;
    return its exit code and how often each ran.
    """
    (folder / "test_counted.py").write_text(COUNTED.format(needed=needed))
    plain = ["-m", "pytest", "-q", "-p", "xdist", str(folder / "test_counted.py")]
    check.ON_DEMAND[name] = ("counted", plain)
    code = check.main([name])
    return code, [len((folder / f"runs {one}").read_text()) for one in needed]


@pytest.fixture
def no_plugins(monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds


@pytest.mark.slow
@pytest.mark.usefixtures("no_plugins")
def test_what_a_busy_machine_failed_is_run_once_more_alone(check, tmp_path, capfd):
    assert counted(check, tmp_path, "slow", [1, 2]) == (0, [1, 2])
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("All passed: slow ") and "passed only when run alone: " in last
    assert "test_it[2]" in last and "test_it[1]" not in last


@pytest.mark.slow
@pytest.mark.parametrize("name, most, runs", [("slow", 10, 2), ("slow", 0, 1), ("six", 10, 1)])
def test_what_fails_again_fails_and_so_does_much_or_any_other_part(
    check, tmp_path, monkeypatch, capfd, name, most, runs
):
    monkeypatch.setattr(check, "MOST", most)
    assert counted(check, tmp_path, name, [3]) == (1, [runs])
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith(f"FAILED in {name}: ") and "alone" not in last
