"""The workshop's server: its configuration loads, learners' files are safe, and the page's plans
and paths are true.
"""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from amp_course.course import CHAPTERS, find
from benchmarks.learner import check_of
from benchmarks.workshop_page import MARK, tables

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "workshop.md").read_text("utf-8")
CONFIG = DEPLOY / "jupyterhub_config.py"

needs_jupyterhub = pytest.mark.skipif(not find_spec("jupyterhub"), reason="no JupyterHub here")


# The configuration


def load(monkeypatch: pytest.MonkeyPatch, state: Path, **settings: str) -> Any:
    """Run the configuration in a fresh namespace, as JupyterHub does."""
    from traitlets.config import Config

    for name in [name for name in os.environ if name.startswith("AMP_COURSE_HUB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AMP_COURSE_HUB_STATE", str(state))
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    config = Config()
    runpy.run_path(str(CONFIG), {"get_config": lambda: config})
    return config


@needs_jupyterhub
@pytest.mark.parametrize("kind", ["systemd", "processes", "trial"])
def test_the_configuration_loads(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = load(monkeypatch, tmp_path, AMP_COURSE_HUB=kind, AMP_COURSE_HUB_LEARNERS="1000")
    assert config.Spawner.environment["OMP_NUM_THREADS"] == "1"
    assert config.Spawner.mem_limit == 2 * 2**30
    assert ("allow_all" in config.Authenticator) == (kind == "trial")
    assert config.Spawner.cmd[:2] == ["prlimit", f"--data={2 * 2**30}"]
    assert all(Path(part).exists() for part in config.Spawner.cmd if part.endswith(".py"))


@needs_jupyterhub
@pytest.mark.parametrize(
    "wrong",
    [
        {"AMP_COURSE_HUB": "tryal"},
        {"AMP_COURSE_HUB": "trial", "AMP_COURSE_HUB_URL": "http://0.0.0.0:8000"},
    ],
)
def test_a_wrong_setting_is_refused(
    wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"AMP_COURSE_HUB is tryal: set it to|127\.0\.0\.1 only"):
        load(monkeypatch, tmp_path, **wrong)


def test_every_setting_that_is_read_is_explained_and_every_one_on_the_page_is_read() -> None:
    text = CONFIG.read_text("utf-8")
    read = {f"AMP_COURSE_HUB_{name}" for name in re.findall(r'setting\(\s*"(\w+)"', text)}
    assert read | {"AMP_COURSE_HUB"} == set(
        re.findall(r"^(AMP_COURSE_HUB\w*)", ast.get_docstring(ast.parse(text)) or "", re.MULTILINE)
    )
    service = (DEPLOY / "jupyterhub.service").read_text("utf-8")
    assert set(re.findall(r"(AMP_COURSE_HUB\w*)=", PAGE + service)) <= read | {"AMP_COURSE_HUB"}


# What the chart's values.schema.yaml (read on 2026-11-28) allows where ours sets something;
# dict: these keys, None: anything
CHART: dict[str, Any] = {
    "singleuser": {
        "image": {"name": None, "tag": None},
        "cmd": None,
        "defaultUrl": None,
        "startTimeout": None,
        "memory": {"guarantee": None, "limit": None},
        "cpu": {"guarantee": None, "limit": None},
        "extraEnv": None,
        "storage": {"type": None, "homeMountPath": None, "capacity": None},
    },
    "hub": {"config": None},
    "cull": {"enabled": None, "timeout": None, "every": None},
    "prePuller": {"hook": {"enabled": None}, "continuous": {"enabled": None}},
}


def unknown_keys(values: Any, allowed: Any, place: str = "") -> list[str]:
    if allowed is None:
        return []
    unknown = [f"{place}{key}" for key in values if key not in allowed]
    return unknown + [
        deeper
        for key in values
        if key in allowed
        for deeper in unknown_keys(values[key], allowed[key], f"{place}{key}.")
    ]


def test_the_values_for_kubernetes_have_the_keys_of_the_chart() -> None:
    text = (DEPLOY / "zero-to-jupyterhub.yaml").read_text("utf-8")
    values = yaml.safe_load(text)
    assert "NOT RUN" in text and unknown_keys(values, CHART) == []
    assert values["singleuser"]["extraEnv"]["OMP_NUM_THREADS"] == "1"  # a number is no variable


def test_hub_container_and_dev_container_mean_the_same_image() -> None:
    image = (ROOT / ".binder" / "Dockerfile").read_text("utf-8")
    user, folder = (
        re.search(pattern, image)[1] for pattern in (r"ARG NB_USER=(\w+)", r"\nWORKDIR (\S+)")
    )
    learner = yaml.safe_load((DEPLOY / "zero-to-jupyterhub.yaml").read_text("utf-8"))["singleuser"]
    assert learner["storage"]["homeMountPath"] == f"/home/{user}"
    assert learner["extraEnv"]["AMP_COURSE_ROOT"] == folder
    assert learner["cmd"][1] == f"{folder}/deploy/learner_server.py"
    dev = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    assert dev["build"]["dockerfile"] == "../.binder/Dockerfile" and dev["remoteUser"] == user


# What starts a learner's server


@pytest.fixture
def learner(tmp_path: Path) -> Any:
    """Start a learner's server as the hub does, with a small course and a server that only says
    that it ran; return what came of it, and the learner's folder.
    """
    course, home = tmp_path / "course", tmp_path / "ana maría"
    for folder in ("notebooks", "exercises"):
        (course / folder).mkdir(parents=True)
        (course / folder / "06_loop.ipynb").write_text("first")
    home.mkdir()
    fake = tmp_path / "modules" / "jupyterhub"
    fake.mkdir(parents=True)
    (fake / "__init__.py").touch()
    (fake / "singleuser.py").write_text("import sys; print('ran', sys.argv[1:])")
    environment = os.environ | {
        "HOME": str(home),
        "TMPDIR": str(tmp_path),  # for the sockets' folder
        "AMP_COURSE_ROOT": str(course),
        "AMP_COURSE_WORK": "~/amp_course/my_work",
        "PYTHONPATH": f"{fake.parent}{os.pathsep}{ROOT}",
    }

    def start() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(DEPLOY / "learner_server.py"), "--port=1"]
        return subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, timeout=60
        )

    return start, course, home / "amp_course"


def test_a_learner_gets_copies_and_keeps_what_they_changed(learner: Any) -> None:
    start, course, folder = learner
    done = start()
    assert done.returncode == 0 and "transport=ipc', '--port=1']" in done.stdout, done.stderr
    changed, untouched = folder / "my_work" / "06_loop.ipynb", folder / "notebooks/06_loop.ipynb"
    assert changed.read_text() == untouched.read_text() == "first"
    changed.write_text("mine")
    for kind in ("notebooks", "exercises"):
        (course / kind / "06_loop.ipynb").write_text("second")
    assert start().returncode == 0
    assert changed.read_text() == "mine" and untouched.read_text() == "second"
    (offered,) = changed.parent.glob("06_loop.new-*.ipynb")
    assert offered.read_text() == "second"


def test_a_learner_whose_home_cannot_be_written_still_gets_a_server(learner: Any) -> None:
    start, _, folder = learner
    folder.write_text("in the way")
    done = start()
    assert done.returncode == 0 and "ran" in done.stdout and "amp_course: " in done.stderr


# The page


def section(title: str) -> str:
    (text,) = re.findall(rf"^### {title}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def rows(text: str) -> list[list[str]]:
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return found[2:]  # without the head


@pytest.mark.parametrize("title", ["Half a day", "One day"])
def test_the_minutes_of_a_plan_are_the_course_s_and_add_up(title: str) -> None:
    *parts, (end, total, _) = rows(section(title))
    now, seen = datetime.strptime(parts[0][0], "%H:%M"), []
    for begin, minutes, what in parts:
        assert datetime.strptime(begin, "%H:%M") == now, what
        now += timedelta(minutes=int(minutes))
        if not re.match(r"\d\d ", what):
            continue
        name, _, do = what.partition(": ")
        chapter = find(name.replace(" ", "_"))
        seen.append(chapter.number)
        if do == "read":
            assert int(minutes) == chapter.minutes, what
        else:
            cards = {one.name: one.minutes for one in chapter.exercises()}
            named = re.findall(r"`(\w+)`", do)
            assert named and int(minutes) == sum(cards[one] for one in named), what
    assert total == f"**{sum(int(minutes) for _, minutes, _ in parts)}**"
    assert datetime.strptime(end, "%H:%M") == now and seen == sorted(seen)


def test_eight_weeks_hold_the_whole_course() -> None:
    *weeks, (_, _, session, homework) = rows(section("Eight weeks"))
    seen = []
    for _, chapters, reading, exercises in weeks:
        named = [find(name.replace(" ", "_")) for name in chapters.split(", ")]
        seen += named
        assert int(reading) == sum(one.minutes for one in named) <= 120
        assert int(exercises) == sum(one.exercise_minutes() for one in named)
    assert tuple(seen) == CHAPTERS and [week[0] for week in weeks] == [*"12345678"]
    assert session == f"**{sum(int(week[2]) for week in weeks)}**"
    assert homework == f"**{sum(int(week[3]) for week in weeks)}**"


def test_every_file_and_module_that_the_page_names_exists() -> None:
    named = set(re.findall(r"\b((?:deploy|docs|benchmarks|tools)/[\w./-]+\w)", PAGE))
    named |= {
        f"{module.replace('.', '/')}.py" for module in re.findall(r"-m (benchmarks\.\w+)", PAGE)
    }
    assert len(named) >= 5
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_tables_are_those_of_the_record() -> None:
    _, measured, _ = PAGE.split(MARK)
    path = ROOT / "benchmarks" / "results" / "workshop.json"
    if not path.exists():
        assert "two learners" in measured
    else:
        assert measured.strip() == tables(json.loads(path.read_text("utf-8")))


def test_a_check_is_found_in_a_cell() -> None:
    assert check_of("f = 1\n\nexercises.f.check(f)\n") == (
        "f",
        'assert exercises.f.check(f).state == "correct"',
    )
    assert check_of("print(1)") is None
