"""A child is ended with all that it started, whatever sessions these are in;
what keeps it from starting is said.
"""

import os
import subprocess
import sys
import time

import psutil
import pytest

from amp_course.kit.children import Child, ChildError, family, run_python

# A process that ignores SIGTERM and starts another in a session of its own.
CODE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def runs(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def started():
    child = Child([sys.executable, "-c", CODE], stdout=subprocess.PIPE)
    yield child, int(child.stdout.readline())
    child.end(0.0)
    child.stdout.close()


def test_its_family_is_found_and_ended(started):
    child, grandchild = started
    assert {one.pid for one in family(child.token)} == {child.pid, grandchild}
    child.end(0.2)
    assert child.poll() is not None and not runs(grandchild) and family(child.token) == []
    child.end()  # nothing is left to do


def test_without_psutil_its_group_is_ended(started, monkeypatch):
    child, grandchild = started
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "psutil", None)
        began = time.monotonic()
        child.end(0.2)
        assert time.monotonic() - began < 4 and child.poll() is not None
    assert runs(grandchild)  # in a session of its own, where nobody finds it


def test_what_cannot_be_started_is_said():
    with pytest.raises(ChildError, match="a new process could not be started: No such file"):
        Child(["/no/such/program"])


def test_a_child_returns_its_last_line_or_its_last_error():
    code = "import os; print('one'); print(os.environ['X'])"
    assert run_python(code, environment={**os.environ, "X": "y"}) == "y"
    with pytest.raises(ChildError, match=r"^ValueError: no$"):
        run_python("raise ValueError('no')")
    with pytest.raises(ChildError, match="exit code 3"):
        run_python("import os; os._exit(3)")
