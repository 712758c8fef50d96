#!/usr/bin/env python3
"""Make .venv and install the course in it; do nothing where that is already done.

Run by `make lab` and `make test` on Linux and macOS. Needs only the standard library, in the syntax of Python 3.6, so that
an old Python gets a line that says what to do, not a SyntaxError. A failure ends in one line with its cause and cure.

The stamp `.venv/installed.json` is written last: without it, whatever an interrupted run left behind is picked up again.
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

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.json"
LOG = VENV / "install.log"
CONSTRAINTS = ROOT / "constraints.txt"
NEEDED = (3, 11)
GIGABYTES = 2.5  # with a CPU build of torch
AGAIN = "and run the same command again: it goes on from here."

# What pip or the system says → what we say. The first that matches counts: on a full disk, or without a network, pip also
# complains that it found no package. A retry that helped is no trouble: only the last one, "total=0", counts.
TROUBLE = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full. The course takes about {gigabytes} GB, with a CUDA build of torch several more. Free some space (or "
        f"set TMPDIR to a folder on a larger disk, if it is the one of {{tmp}} that is full) {AGAIN}",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "the package index could not be trusted, as happens behind a company's proxy. Set PIP_CERT to the company's certificate "
        f"file {AGAIN}",
    ),
    (
        r"Retry\(total=0\b|Max retries exceeded|^(ERROR|error).*([Cc]onnect|timed out|name resolution|[Pp]roxy|[Ii]ncomplete)",
        f"the package index cannot be reached. Check the network (behind a proxy, set HTTPS_PROXY) {AGAIN}",
    ),
    (
        r"Permission denied|Read-only file system",
        f"a file or folder cannot be written. Make {{root}} and all in it writable by you {AGAIN}",
    ),
    (
        r"No matching distribution found for torch\b",
        "there is no torch {torch} for Python {python} and this machine where pip looks. Try another Python, such as "
        "`make lab PYTHON=python3.12` after removing .venv, or another TORCH_INDEX.",
    ),
)


class Stop(Exception):
    """The set-up cannot go on; the message is one line, with the cause and the cure."""


def main(arguments=None):
    """Run the set-up; return its exit code."""
    parser = argparse.ArgumentParser(description="Make .venv and install the course in it.")
    parser.add_argument("--extra", default="", help="install this extra as well: test")
    parser.add_argument("--torch-index", default="", help="take torch from the package index at this address")
    options = parser.parse_args(arguments)
    try:
        if not done(options):
            check_python()
            check_folder()
            with alone():
                if not done(options):  # another run may have done it meanwhile
                    install(options)
    except Stop as stop:
        return say(f"\namp_course: {stop}", 1, sys.stderr)
    except KeyboardInterrupt:
        return say("\namp_course: interrupted. The same command goes on from here.", 130, sys.stderr)
    except OSError as error:
        return say(f"\namp_course: {explain(str(error)) or error} ({error.filename})", 1, sys.stderr)
    return 0


def done(options):
    """Say whether .venv already holds what is asked for. An installed `test` is enough for `lab`."""
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
        "folder": str(ROOT),  # the scripts in .venv hold its path: in a moved clone they must be written again
        "python": os.path.realpath(str(PYTHON)),  # an upgrade of the system may put another Python in its place
    }


def read_stamp():
    """Return the stamp, or an empty one where none can be read."""
    try:
        return json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"extras": [], "torch_index": ""}


def check_python():
    """Stop if the Python that runs this cannot run the course or cannot make a virtual environment."""
    version, minor = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < NEEDED:
        raise Stop(
            f"amp_course needs Python 3.11 or newer; this is {version} at {sys.executable}. Install a newer one, or name one "
            "that you have: make lab PYTHON=python3.12"
        )
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        raise Stop(
            f"{sys.executable} cannot make a virtual environment: its module ensurepip is missing. On Debian or Ubuntu, run "
            f"`sudo apt install python{minor}-venv`; then run the same command again."
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
        # pip takes any build of the version for the right one, so a new index must be told to replace what is there.
        replace = [] if torch_index == before["torch_index"] else ["--force-reinstall"]
        pip("--index-url", torch_index, f"torch=={torch_pin()}", *replace)
    pip("-c", str(CONSTRAINTS), "-e", f".[{','.join(extras)}]" if extras else ".")
    partial = STAMP.with_suffix(".tmp")
    partial.write_text(json.dumps(dict(state(), extras=extras, torch_index=torch_index)), encoding="utf-8")
    partial.replace(STAMP)
    say("Installed; the next start takes seconds.")


def make_venv():
    """Make .venv, unless there is one that works."""
    check = f"import sys, pip; sys.exit(sys.version_info < {NEEDED} or sys.prefix == sys.base_prefix)"
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
            raise Stop(explain(output) or f"{sys.executable} could not make .venv: {' '.join(output.split())[-300:]}")


def forget_half_written():
    """Remove the records of packages that a killed pip left half written, so that it writes them again."""
    for record in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (record / "INSTALLER").exists():  # pip writes it after the package's own files
            shutil.rmtree(str(record))


def pip(*arguments):
    """Run `pip install` in .venv, showing its large steps; raise Stop with the cause if it fails."""
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    code, output = run([str(PYTHON), "-m", "pip", "install", *options, *arguments], show=True)
    if code:
        with contextlib.suppress(OSError):
            LOG.write_text(output, encoding="utf-8")
        raise Stop(explain(output) or f"pip failed with exit code {code}; all that it said is in {LOG}.")


def run(command, show=False):
    """Run a command to its end; return its exit code and its output. With show, print the steps worth seeing."""
    lines = []
    process = subprocess.Popen(
        command,
        cwd=str(ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=dict({"PIP_RETRIES": "3"}, **os.environ),  # pip's five make a reader without a network wait
        close_fds=False,  # hands on the lock of alone()
    )
    for line in process.stdout:
        lines.append(line)
        if show and step(line):
            say("  " + step(line))
    return process.wait(), "".join(lines)


def step(line):
    """Return what a line of pip's tells of its progress: large downloads, the last step, trouble; else ""."""
    size = re.search(r"Downloading .*\(([\d.]+) (MB|GB)\)", line)
    if size and (size.group(2) == "GB" or float(size.group(1)) >= 10):
        return line.strip()
    if line.startswith("Installing collected packages:"):
        return f"Writing {line.count(',') + 1} packages; a minute or two ..."
    trouble = line.startswith("ERROR") or line.strip().startswith("WARNING: Retrying")
    return line.strip()[:300] if trouble else ""


def explain(output):
    """Find the cause in what a command said; return a line with the cause and the cure, or None."""
    for pattern, message in TROUBLE:
        if re.search(pattern, output, re.MULTILINE):
            tmp, minor = os.environ.get("TMPDIR", "/tmp"), ".".join(map(str, sys.version_info[:2]))
            return message.format(gigabytes=GIGABYTES, tmp=tmp, root=ROOT, torch=torch_pin(), python=minor)
    return None


def torch_pin():
    """Return the version of torch that constraints.txt pins, such as "2.13.0"."""
    return re.search(r"^torch==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE).group(1)


def say(line, code=0, file=None):
    """Print a line at once, also when the output goes to a file; return the exit code that goes with it."""
    print(line, file=file or sys.stdout, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
