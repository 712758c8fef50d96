"""One JupyterLab for all tests of a worker, one Chromium for those of a module; a page of its own for
each test.
"""

import os
import shutil
from pathlib import Path

import pytest

from amp_course.authoring.photographs import find_chromium
from tests.browser.server import Lab

HERE = Path(__file__).parent
SCREENSHOTS = HERE / "screenshots"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# milliseconds from one action to the next, about a hand's: ipywidgets can lose a change made while
# it sends another
PACE = 200
PATIENCE = 60_000  # milliseconds: on a busy machine a panel's answer can take many seconds


def pytest_addoption(parser):
    parser.addoption(
        "--screenshots",
        action="store_true",
        help="save pictures of every notebook and panel to look at",
    )


def place(item):
    """So that the two halves of `make test`, and all workers of the slow part, end together."""
    places = {"test_panels.py": 0, "test_keyboard.py": 3, "test_lab.py": 4}
    if item.path.parent != HERE:
        return 2
    if item.path.name == "test_lab.py" and item.get_closest_marker("slow"):
        return 0
    return places.get(item.path.name, 2)


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if HERE in Path(item.path).parents]
    for item in ours:
        item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.timeout(900))
        # Playwright's event loop and Chromium's pipes are closed by the garbage collector.
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        item.add_marker(
            pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
        )
    items.sort(key=place)
    if not config.getoption("--screenshots", default=False):
        pictures = [item for item in ours if item.get_closest_marker("screenshots")]
        items[:] = [item for item in items if item not in pictures]
        config.hook.pytest_deselected(items=pictures)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Save a picture of the page on which a test failed."""
    report = yield
    funcargs = getattr(item, "funcargs", {})
    page = funcargs.get("page") or funcargs.get("quick_page")
    if report.failed and report.when != "teardown" and page is not None:
        path = SCREENSHOTS / f"failed_{item.name}.png"
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=path)
        report.sections.append(("The page", str(path)))
    return report


@pytest.fixture(scope="session")
def chromium_path():
    path = find_chromium()
    if path is None:
        how = (
            "no Chromium was found, so the browser tests did not run: install one (Debian and "
            "Ubuntu: `sudo apt-get install chromium`; macOS: `brew install --cask chromium`) and "
            "run `make test` again"
        )
        if os.environ.get("AMP_COURSE_REQUIRE_BROWSER") == "1":
            pytest.fail(how)
        pytest.skip(how)
    return path


@pytest.fixture(scope="module")
def launch(chromium_path, playwright):
    """Return a function that starts Chromium, and its context,
    with Playwright's options for a browser.
    """
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    started = []

    def launch(**options):
        started.append(
            playwright.chromium.launch(executable_path=chromium_path, args=FLAGS, **options)
        )
        context = started[-1].new_context(viewport={"width": 1500, "height": 1000})
        context.set_default_timeout(PATIENCE)
        return context

    yield launch
    for chromium in started:
        chromium.close()


@pytest.fixture(scope="module")
def browser(launch):
    return launch(slow_mo=PACE)  # one context for all, for its cache: JupyterLab is large


@pytest.fixture(scope="module")
def quick_browser(launch):
    """A browser without the pace of a hand, for tests that look and hardly touch."""
    return launch()


@pytest.fixture
def quick_page(quick_browser):
    page = quick_browser.new_page()
    yield page
    page.close()


@pytest.fixture
def page(browser):
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture(scope="session")
def server(chromium_path, tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("course") / "amp_course")
    yield lab
    lab.stop()


@pytest.fixture
def lab(server):
    """The running JupyterLab, without kernels, and with untouched exercises."""
    shutil.rmtree(server.folder / "my_work", ignore_errors=True)
    shutil.copytree(server.folder / "exercises", server.folder / "my_work")
    if server.process is None:
        server.start()
    yield server
    if server.process is not None:
        server.shut_down_kernels()


@pytest.fixture
def portray(request, page):
    """Save pictures for people to look at, if they were asked for: `make screenshots`."""
    if not request.config.getoption("--screenshots", default=False):
        return lambda *_: None
    from tests.browser.pictures import portray

    SCREENSHOTS.mkdir(exist_ok=True)
    return lambda panel, name: portray(page, panel, SCREENSHOTS, name)
