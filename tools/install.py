#!/usr/bin/env python3
"""Make .venv and install the course in it; do nothing where that is already done.

Run by `make lab` and `make test` on Linux and macOS. Needs only the standard library, in the syntax
of Python 3.6, so that an old Python gets a line that says what to do, not a SyntaxError. A failure
ends in one line with its cause and fix.

The stamp `.venv/installed.json` is written last: without it, whatever an interrupted run left
behind is picked up again.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import trouble

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.json"
LOG = VENV / "install.log"
CONSTRAINTS = ROOT / "constraints.txt"
NEEDED = (3, 11)
GIGABYTES = 2  # with a CPU build of torch


class Stop(Exception):
    """The set-up cannot go on; the message is one line, with the cause and the fix."""


def main(arguments=None):
    """Run the set-up; return its exit code."""
    parser = argparse.ArgumentParser(description="Make .venv and install the course in it.")
    parser.add_argument("--extra", default="", help="install this extra as well: test")
    parser.add_argument(
        "--torch-index", default="", help="take torch from the package index at this address"
    )
    options = parser.parse_args(arguments)
    try:
        check_whole()
        if not done(options):
            check_python()
            check_folder()
            with alone():
                if not done(options):  # another run may have done it meanwhile
                    install(options)
    except Stop as stop:
        return say(f"\namp_course: {stop}", 1, sys.stderr)
    except KeyboardInterrupt:
        return say(
            "\namp_course: interrupted. The same command goes on from here.", 130, sys.stderr
        )
    except OSError as error:
        return say(
            f"\namp_course: {explain(str(error)) or error} ({error.filename})", 1, sys.stderr
        )
    return 0


def done(options):
    """Return True if .venv already holds what is asked for.
    An installed `test` is enough for `lab`.
    """
    stamp = read_stamp()
    return (
        PYTHON.exists()
        and all(stamp.get(key) == value for key, value in state().items())
        and options.extra in ["", *stamp["extras"]]
        and options.torch_index in ["", stamp["torch_index"]]
    )


def state():
    """Return what an installation depends on: when one of these changes, it is renewed."""
    requirements = (ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes()
    return {
        "requirements": hashlib.sha256(requirements).hexdigest(),
        "folder": str(
            ROOT
        ),  # the scripts in .venv hold its path: in a moved clone they must be written again
        "python": os.path.realpath(
            str(PYTHON)
        ),  # an upgrade of the system may put another Python in its place
    }


def read_stamp():
    """Return the stamp, or an empty one where none can be read."""
    try:
        return json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"extras": [], "torch_index": ""}


def check_whole():
    """Stop if one of the two files that say what to install is missing."""
    for path in (ROOT / "pyproject.toml", CONSTRAINTS):
        if not path.is_file():
            raise Stop(
                f"{path} is missing, so this folder is not whole. Get it back with `git checkout "
                f"{path.name}`."
            )


def check_python():
    """Stop if the Python that runs this cannot run the course or cannot make a virtual
    environment.
    """
    version, minor = (
        ".".join(map(str, sys.version_info[:3])),
        ".".join(map(str, sys.version_info[:2])),
    )
    if sys.version_info < NEEDED:
        raise Stop(
            f"amp_course needs Python 3.11 or newer; this is {version} at {sys.executable}. "
            f"Install a newer one, or name one "
            "that you have: make lab PYTHON=python3.12"
        )
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        raise Stop(
            f"{sys.executable} cannot make a virtual environment: its module ensurepip is missing. "
            f"On Debian or Ubuntu, run `sudo apt install python{minor}-venv`; then run the same "
            f"command again."
        )


def check_folder():
    """Stop if .venv cannot be written, or if the disk is too full to begin."""
    if not os.access(str(VENV if VENV.exists() else ROOT), os.W_OK):
        raise Stop(explain("Permission denied"))
    free = shutil.disk_usage(str(ROOT)).free / 1e9
    if free < GIGABYTES and not (VENV / "bin" / "jupyter").exists():
        raise Stop(f"{free:.1f} GB are free in {ROOT}: {explain('No space left on device')}")


@contextlib.contextmanager
def alone():
    """Hold a lock, on this very file, so that two runs do not write to .venv at once.

    pip inherits it: if this process is killed, the next one waits for the pip that it left behind.
    """
    with open(__file__) as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up is at work in this folder; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield


def install(options):
    """Make .venv whole; install in it what is asked for now and what was before."""
    before = read_stamp()
    extras = sorted({options.extra, *before["extras"]} - {""})
    torch_index = options.torch_index or before["torch_index"]
    if STAMP.exists():
        STAMP.unlink()
    make_venv()
    forget_half_written()
    say("Installing packages; the first time takes some minutes ...")
    if torch_index:
        # pip takes any build of the version for the right one, so a new index must be told to
        # replace what is there.
        replace = [] if torch_index == before["torch_index"] else ["--force-reinstall"]
        pip("--index-url", torch_index, f"torch=={torch_pin()}", *replace)
    pip("-c", str(CONSTRAINTS), "-e", f".[{','.join(extras)}]" if extras else ".")
    partial = STAMP.with_suffix(".tmp")
    partial.write_text(
        json.dumps(dict(state(), extras=extras, torch_index=torch_index)), encoding="utf-8"
    )
    partial.replace(STAMP)
    say("Installed; the next start takes seconds.")


def make_venv():
    """Make .venv, unless there is one that works."""
    check = (
        f"import sys, pip; sys.exit(sys.version_info < {NEEDED} or sys.prefix == sys.base_prefix)"
    )
    if PYTHON.exists() and run([str(PYTHON), "-c", check])[0] == 0:
        return
    say(f"Making .venv with {sys.executable} ...")
    # In two steps, because venv keeps to itself what ensurepip says when it fails.
    for step in (
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)],
        [str(PYTHON), "-m", "ensurepip", "--default-pip"],
    ):
        code, output = run(step)
        if code:
            said = " ".join(output.split())[-300:]
            raise Stop(
                explain(output)
                or f"{sys.executable} could not make .venv: {said}. Remove {VENV} {trouble.AGAIN}"
            )


def forget_half_written():
    """Remove the records of packages that a killed pip left half written,
    so that it writes them again.
    """
    for record in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (record / "INSTALLER").exists():  # pip writes it after the package's own files
            shutil.rmtree(str(record))


def pip(*arguments):
    """Run `pip install` in .venv, showing its large steps;
    raise Stop with the cause if it fails.
    """
    command = [
        str(PYTHON),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
    ]
    code, output = run(command + list(arguments), show=True)
    if code < 0:
        raise Stop(
            f"pip was ended by signal {-code} (9 as a rule: memory ran out). Close some programs "
            f"{trouble.AGAIN}"
        )
    if code:
        # When pip finds no file of a pinned version, it speaks of a conflict; asked for that
        # version alone, it says why.
        for pin in sorted(set(re.findall(r"\(constraint\) (\S+==\S+)", output))):
            output += run([*command, "--dry-run", "--no-deps", pin])[1]
        with contextlib.suppress(OSError):
            LOG.write_text(output, encoding="utf-8")
        errors = re.findall(r"^(?:ERROR: |error: )(.+)", output, re.MULTILINE)
        last = f"pip failed ({errors[-1][:200]})" if errors else f"pip failed with exit code {code}"
        raise Stop(
            explain(output)
            or f"{last}; all that it said is in {LOG}. Put that right {trouble.AGAIN}"
        )


def run(command, show=False):
    """Run a command to its end; return its exit code and its output.
    With show, print the steps worth seeing.
    """
    lines = []
    process = subprocess.Popen(
        command,
        cwd=str(ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=environment(),
        close_fds=False,  # passes on the lock of alone()
    )
    for line in process.stdout:
        lines.append(line)
        if show and step(line):
            say("  " + step(line))
    return process.wait(), "".join(lines)


def environment():
    """Return the variables for pip: the reader's, less those that would make it install elsewhere
    than in .venv.
    """
    elsewhere = (
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_REQUIRE_HASHES",
        "PYTHONHOME",
        "PYTHONPATH",
    )
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}
    # pip's five retries make a reader without a network wait
    return dict({"PIP_RETRIES": "3"}, **dict(kept, PIP_USER="0"))


def step(line):
    """Return what a line of pip's tells of its progress: large downloads, the last step, trouble;
    else "".
    """
    size = re.search(r"Downloading .*\(([\d.]+) (MB|GB)\)", line)
    if size and (size.group(2) == "GB" or float(size.group(1)) >= 10):
        return line.strip()
    if line.startswith("Installing collected packages:"):
        return f"Writing {line.count(',') + 1} packages; a minute or two ..."
    trouble = line.startswith("ERROR") or line.strip().startswith("WARNING: Retrying")
    return line.strip()[:300] if trouble else ""


def explain(output):
    """Find the cause in what a command said; return a line with the cause and the fix, or None."""
    return trouble.explain(
        output,
        gigabytes=GIGABYTES,
        tmp=os.environ.get("TMPDIR", "/tmp"),
        root=ROOT,
        torch=torch_pin(),
        python=".".join(map(str, sys.version_info[:2])),
        python_full=".".join(map(str, sys.version_info[:3])),
        executable=sys.executable,
        package="a package",
        index="the address in TORCH_INDEX",
    )


def torch_pin():
    """Return the version of torch that constraints.txt pins, such as "2.13.0"."""
    found = re.search(r"^torch==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise Stop(
            f"{CONSTRAINTS} is damaged: it names no torch. Get it back with `git checkout "
            f"{CONSTRAINTS.name}`."
        )
    return found.group(1)


def say(line, code=0, file=None):
    """Print a line at once, also when the output goes to a file;
    return the exit code that goes with it.
    """
    print(line, file=file or sys.stdout, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
