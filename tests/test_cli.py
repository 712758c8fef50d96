"""The command `amp-course`: what it says, what it hands on to JupyterLab, and how it refuses."""

import json
import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

from amp_course import cli, lab, work
from amp_course.course import Chapter


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("notebooks", "exercises"):
        (tmp_path / name).mkdir()
    (tmp_path / "notebooks" / "06_loop.ipynb").touch()
    (tmp_path / "exercises" / "06_loop.ipynb").write_text("{}")
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path / "my_work"))
    return tmp_path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that JupyterLab would have been started with; the environment is put back."""
    arguments: list[str] = []

    class LabApp:
        @staticmethod
        def launch_instance(argv: list[str]) -> None:
            arguments.extend(argv)

    monkeypatch.setitem(sys.modules, "jupyterlab", types.ModuleType("jupyterlab"))
    labapp = types.ModuleType("jupyterlab.labapp")
    labapp.LabApp = LabApp
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", labapp)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/theirs")
    return arguments


@pytest.fixture
def taken() -> int:
    """A port that another program listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_lab_listens_on_this_machine_and_opens_the_start_page(
    clone: Path, launched: list[str]
) -> None:
    port = free_port()
    assert cli.main(["lab", "--port", str(port)]) == 0
    assert "--ServerApp.ip=127.0.0.1" in launched
    assert f"--ServerApp.port={port}" in launched
    assert f"--ServerApp.root_dir={clone}" in launched
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start.ipynb" in launched
    assert "--no-browser" not in launched
    assert not [argument for argument in launched if "token" in argument or "password" in argument]
    assert (clone / "my_work" / "06_loop.ipynb").exists()


def test_lab_hands_on_the_options_of_jupyterlab_and_what_follows_two_dashes(
    clone: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "check_options", lambda arguments, own: None)
    port = str(free_port())
    cli.main(
        f"lab --no-browser --port {port} --LabApp.dev_mode=True --debug -- --port-x --".split()
    )
    assert launched[-4:] == ["--LabApp.dev_mode=True", "--debug", "--port-x", "--"]
    assert "--no-browser" in launched


@pytest.mark.parametrize(
    "known",
    [
        "--debug",
        "--ip 0.0.0.0",
        "--ServerApp.ip=::1",
        "--MappingKernelManager.cull_interval 5",
        "-y --core-mode",
    ],
)
def test_options_of_jupyterlab_are_known(known: str) -> None:
    lab.check_options(known.split())


@pytest.mark.parametrize(
    "wrong, meant",
    [
        ("--prot 8890", "has an option --prot. Did you mean --port?"),
        ("--debug --no-brwoser", "has an option --no-brwoser. Did you mean --no-browser?"),
        ("--ServerApp.ipp=::1", "has an option --ServerApp.ipp. Did you mean --ServerApp.ip?"),
        ("-q", "has an option -q. (Put"),
        ("--ip 0.0.0.0 8890", "'8890' is not an option"),
        ("06_loop", "'06_loop' is not an option"),
    ],
)
def test_a_misspelt_option_is_one_line_with_the_nearest(
    clone: Path, wrong: str, meant: str, capsys
) -> None:
    assert cli.main(["lab", *wrong.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("amp-course: ") and meant in line
    assert not (clone / "my_work").exists()  # nothing was begun


def test_lab_keeps_the_users_jupyter_settings(clone: Path, launched: list[str]) -> None:
    cli.main(["lab", "--port", str(free_port())])
    ours, theirs = os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert theirs == "/theirs"
    config = json.loads(Path(ours, "labconfig", "page_config.json").read_text())
    off = {"@jupyterlab/apputils-extension:announcements": True, "@jupyter/nbgrader": True}
    assert config == {"disabledExtensions": off}


@pytest.mark.slow
def test_nbgrader_which_the_tests_install_is_no_part_of_the_learners_lab() -> None:
    """Asked of JupyterLab itself, with the course's settings."""
    command = [sys.executable, "-m", "jupyterlab.labextensions", "list"]
    settings = {"JUPYTER_CONFIG_PATH": str(Path(lab.__file__).parent / "lab_settings")}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert (
        "@jupyter/nbgrader (all plugins)"
        in (done.stdout + done.stderr).partition("Disabled extensions:")[2]
    )


def test_where_home_cannot_be_written_jupyter_gets_folders_in_my_work(
    clone: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "a file").touch()
    monkeypatch.setenv(
        "HOME", str(clone / "a file" / "home")
    )  # root may write anywhere, but not below a file
    for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"):
        monkeypatch.delenv(f"JUPYTER_{name}", raising=False)
    for name in ("XDG_DATA_HOME", "XDG_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["lab", "--port", str(free_port())]) == 0
    folders = {
        name: os.environ.get(name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    }
    folders["IPYTHONDIR"] = os.environ.get("IPYTHONDIR")
    for name, folder in folders.items():
        assert (
            folder == str(clone / "my_work" / ".jupyter" / name.lower()) and Path(folder).is_dir()
        )
        monkeypatch.setenv(name, folder)  # so that it is put back


def test_a_port_in_use_is_one_line_and_code_2(
    clone: Path, launched: list[str], taken: int, capsys
) -> None:
    assert cli.main(["lab", "--port", str(taken)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"amp-course: port {taken} is in use by another program: choose another with `--port N`"
    )
    assert launched == []


def test_without_a_port_the_next_free_one_is_taken_and_said(
    clone: Path, launched: list[str], taken: int, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(lab, "FIRST_PORT", taken)
    assert cli.main(["lab"]) == 0
    (chosen,) = [argument for argument in launched if argument.startswith("--ServerApp.port=")]
    number = int(chosen.partition("=")[2])
    assert taken < number < taken + 100
    assert f"Port {taken} is in use; JupyterLab starts on {number}." in capsys.readouterr().out


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "٣"])
def test_what_is_no_port_is_refused(port: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["lab", f"--port={port}"])
    assert stopped.value.code == 2
    assert "is not a port: give a number from 1 to 65535" in capsys.readouterr().err


def test_help_names_every_command_and_shows_examples(capsys) -> None:
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    for word in (
        "lab",
        "progress",
        "report",
        "reset",
        "update",
        "examples:",
        "amp-course reset 06",
    ):
        assert word in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "argv", [["progress", "--all"], ["nonsense"], ["reset"], ["report", "--js"]]
)
def test_an_unknown_option_is_refused(argv: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2


def test_reset_says_where_the_old_copy_is(clone: Path, capsys) -> None:
    work.copy_missing()
    assert cli.main(["reset", "loop"]) == 0
    out = capsys.readouterr().out
    assert "Your work is kept as " in out and "06_loop.saved-" in out


def test_progress_lists_each_exercise_with_its_state(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    tasks = [types.SimpleNamespace(id=f"loop.{i}", number=i, title=f"Task {i}") for i in (1, 2)]
    monkeypatch.setattr(Chapter, "exercises", lambda self: tuple(tasks))
    (clone / "my_work").mkdir()
    entry = {"state": "correct", "attempts": 1}
    progress = {"version": 1, "exercises": {"loop.1": entry}}
    (clone / "my_work" / "progress.json").write_text(json.dumps(progress))
    assert cli.main(["progress"]) == 0
    first, one, two, coming = capsys.readouterr().out.splitlines()
    assert first.startswith("06 loop") and first.endswith("1 of 2 exercises")
    assert one.split() == ["1", "correct", "Task", "1"]
    assert two.split() == ["2", "not", "attempted", "Task", "2"]
    assert coming.startswith("In the making: start, bits")


def test_mistakes_are_listed_for_an_instructor(capsys) -> None:
    from amp_course.scaler.exercises import update_rule

    assert cli.main(["mistakes", "scaler", "--json"]) == 0
    rows = [
        row
        for row in json.loads(capsys.readouterr().out)
        if row["exercise"] == "scaler.update_rule"
    ]
    assert [row["mistake"] for row in rows] == [one.name for one in update_rule.mistakes]
    assert cli.main(["mistakes", "05"]) == 0
    printed = capsys.readouterr().out
    assert (
        all(one.name in printed for one in update_rule.mistakes)
        and "against: “streak of clean steps”" in printed
    )
    assert "**" not in printed and "01 bits" not in printed and "{" not in printed
    assert cli.main(["mistakes", "cooking"]) == 2


def test_report_prints_text_or_json(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    class Report:
        def __str__(self) -> str:
            return "a machine"

        def to_dict(self) -> dict[str, str]:
            return {"device": "cpu"}

    hardware = types.ModuleType("amp_course.kit.hardware")
    hardware.machine_report = Report
    monkeypatch.setitem(sys.modules, hardware.__name__, hardware)
    cli.main(["report"])
    assert capsys.readouterr().out == "a machine\n"
    cli.main(["report", "--json"])
    assert json.loads(capsys.readouterr().out) == {"device": "cpu"}


def pipe(command: str, clone: Path) -> subprocess.CompletedProcess[str]:
    script = f"set -o pipefail; {sys.executable} -m amp_course {command}"
    own = {"AMP_COURSE_ROOT": str(clone), "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    return subprocess.run(
        ["bash", "-c", script], env=os.environ | own, capture_output=True, text=True, timeout=100
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["progress", "report --json", "--help", "lab --help", "reset 06"]
)
def test_a_closed_pipe_gets_no_traceback(command: str, clone: Path) -> None:
    done = pipe(f"{command} | true", clone)
    assert done.stderr == "" and done.returncode in (
        0,
        141,
    )  # 141: what a shell says of any program that SIGPIPE ended


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "2>/dev/full"])
def test_closed_outputs_cost_nothing(closed: str, clone: Path) -> None:
    done = pipe(f"progress {closed}", clone)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_an_output_on_a_full_disk_is_one_line(clone: Path) -> None:
    done = pipe("progress >/dev/full", clone)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("amp-course: ") and "the disk is full" in line
