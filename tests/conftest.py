"""Set up the test run: the learner's copies and progress are not the tests' to touch.
`--told` lists the feedback on wrong answers.
"""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# jsonschema would prepare a grammar of web addresses, which takes seconds, and no notebook needs
# it.
sys.modules.setdefault("rfc3987_syntax", None)

# Set here, not in a fixture: kernels and commands that tests start inherit it, whenever they start.
# In memory where there is a place for it: a thousand checks save their progress, and each waits for
# the disk.
_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_scratch = tempfile.mkdtemp(prefix="amp_course_work_", dir=_memory)
atexit.register(shutil.rmtree, _scratch, ignore_errors=True)
os.environ["AMP_COURSE_WORK"] = os.path.join(_scratch, "my_work")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in a shell's background: then no test of Ctrl-C could pass
    signal.signal(signal.SIGINT, signal.default_int_handler)

DIAGNOSIS = "diagnosis"


# A rented machine with a GPU has torch, scikit-learn, matplotlib and pytest, and perhaps no more:
# `pytest -m gpu` is to run there. The other tests import what it lacks, and a time limit needs a
# plugin.


def pytest_ignore_collect(collection_path, config):
    if config.option.markexpr == "gpu" and collection_path != HERE:
        return not collection_path.is_relative_to(HERE / "gpu") or None
    if config.option.markexpr == "slow" and collection_path.suffix == ".py":
        # To import a file, and to make its tests, takes time: only if it or its folder has the mark
        near = (collection_path, collection_path.with_name("conftest.py"))
        text = "".join(path.read_text("utf-8") for path in near if path.is_file())
        return f"mark.{config.option.markexpr}" not in text or None


TIMEOUT = 120  # seconds for each test
WARNINGS = [
    "error",
    "ignore:Guards may run slower on Python 3.13.0",  # by torch's compiler, on that Python alone
    # by torch 2.15, whose forward-mode derivatives use it, too
    "ignore:`torch.jit.(script|trace|trace_method)` is deprecated:FutureWarning",
]


def pytest_addoption(parser):
    parser.addoption("--told", action="store_true", help="list the feedback on each wrong answer")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads its option
def pytest_configure(config):
    """Set what pyproject.toml must not: pytest reads that for the notebooks too,
    with no pytest-timeout.
    """
    for line in WARNINGS:
        config.addinivalue_line("filterwarnings", line)
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): not kept, for want of pytest-timeout")
    elif config.option.timeout is None:
        config.option.timeout = TIMEOUT


def pytest_collection_finish():
    """What has been imported by now stays. A garbage collector that looks at all of it again
    takes a fifth of the time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def quiet_machine():
    """A test's outcome does not depend on what else runs:
    to the tests, this process never waits for a CPU.
    """
    with pytest.MonkeyPatch.context() as patch:
        if measure := sys.modules.get("amp_course.kit.measure"):
            patch.setattr(measure, "read_waits", lambda: {"main": 0})
        yield


@pytest.fixture(scope="module")
def one_thread():
    """Run on one thread: for models this small it costs less, and minds no other program."""
    from amp_course.kit import threads  # late: torch takes a second, which not every test needs

    with threads.one_thread():
        yield


def pytest_terminal_summary(terminalreporter, config):
    """Tests leave their diagnoses as properties of their reports,
    which come in from other processes too.
    """
    if not config.getoption("--told"):
        return
    reports = [
        report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])
    ]
    feedback = sorted(
        value
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == DIAGNOSIS
    )
    terminalreporter.section(f"{len(feedback)} wrong answers and the feedback on each")
    for exercise, mistake, message in feedback:
        terminalreporter.write_line(f"{exercise} / {mistake}\n    {message}")


@pytest.fixture(scope="module")
def playwright():
    """Playwright; while it runs, `asyncio.run` fails in the same thread, so each module has its
    own.
    """
    with pytest.importorskip("playwright.sync_api").sync_playwright() as started:
        yield started
    gc.collect()  # what it leaves open is closed before the next module's tests


@pytest.fixture(scope="module")
def chromium(request):
    """One Chromium for pages that need no JupyterLab, the book's and the slides'."""
    from amp_course.authoring.photographs import find_chromium
    from tests.browser.conftest import FLAGS

    path = find_chromium()
    if path is None and not os.environ.get("AMP_COURSE_REQUIRE_BROWSER"):
        pytest.skip("no Chromium")
    browser = request.getfixturevalue("playwright").chromium.launch(
        executable_path=path, args=FLAGS
    )
    yield browser
    browser.close()
