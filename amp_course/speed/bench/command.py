"""The command `amp-course bench`: choose where the results go, show progress, and keep what was
measured before Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from amp_course.kit.errors import CourseError, describe_os_error
from amp_course.kit.files import replacing, unused_name, write_text
from amp_course.kit.hardware import pick_device
from amp_course.kit.markup import counted
from amp_course.kit.paths import work_dir
from amp_course.speed.bench.advice import recommend
from amp_course.speed.bench.page import BENCHMARK, Page
from amp_course.speed.bench.run import Bench, Plan, Tick
from amp_course.speed.bench.text import page_text

INTERRUPTED = 130  # the exit code of a program that SIGINT ends


@dataclass(frozen=True)
class Targets:
    """Where the results go.

    folder: for a JSON and a PNG under unused names; None takes the learner's folder, unless a file
            is named
    json:   a file, or "-" for the standard output, which then has nothing else
    png:    a file
    force:  True if an existing file may be replaced
    """

    folder: Path | None = None
    json: str | None = None
    png: str | None = None
    force: bool = False

    def check(self) -> None:
        """Raise CourseError, before minutes of measuring, for what could not be written."""
        named = [Path(name) for name in (self.json, self.png) if name and name != "-"]
        for path in named:
            if path.exists() and not path.is_file():
                raise CourseError(
                    f"{path} is a folder or a device: name a file, or give a folder by `--out`."
                )
            if path.exists() and not self.force:
                raise CourseError(
                    f"{path} already exists: choose another name, or add --force to replace it."
                )
        if len(named) == 2 and named[0].resolve() == named[1].resolve():
            raise CourseError(
                f"--json and --png both name {named[0]}: give each a file of its own."
            )
        if not self.json and not self.png:
            _check_folder(self._folder())
        for path in named:
            _check_folder(path.parent)

    def _folder(self) -> Path:
        """Return the folder for files that were given no name; make the learner's."""
        if self.folder is None:
            work_dir().mkdir(parents=True, exist_ok=True)
        return self.folder or work_dir()

    def paths(self, page: Page) -> tuple[Path | None, Path | None]:
        """Return where the JSON and the PNG go; None for one that is not written."""
        if self.json or self.png:
            return self._named(self.json), self._named(self.png)
        folder, stem = self._folder(), _stem(page)
        name, number = stem, 1
        while (folder / f"{name}.json").exists() or (folder / f"{name}.png").exists():
            number += 1
            name = f"{stem}-{number}"
        return folder / f"{name}.json", folder / f"{name}.png"

    def _named(self, name: str | None) -> Path | None:
        if name is None or name == "-":
            return None
        path = Path(name)
        # somebody may have written it in the meantime
        return path if self.force or not path.exists() else unused_name(path, "new")


def bench(device_name: str | None, plan: Plan, targets: Targets) -> int:
    """Measure, print the page, write the files and return the exit code: 0, or 130 after Ctrl-C.

    Raises CourseError for a device that is not there and, if possible before it measures, for files
    that cannot be written.
    """
    device = _device(device_name)
    targets.check()
    run = Bench(device, plan)
    minutes = max(1, round((1.25 * run.planned_seconds + 10) / 60))  # models and data are made, too
    duration = counted(minutes, "minute")
    _say(f"Measuring {device}: about {duration}. Ctrl-C ends it and keeps what is done.")
    try:
        with _progress(run.planned_seconds) as tick:
            run.run(tick)
    except KeyboardInterrupt:
        _say("Interrupted.")
        if run.report is None or run.measured is None:
            _say("Nothing had been measured yet, so nothing is written.")
            return INTERRUPTED
    page = run.page()
    data = json.dumps({**page.to_dict(), "recommendation": asdict(recommend(page))}, indent=1)
    try:
        print(data if targets.json == "-" else page_text(page), flush=True)
    finally:  # even if the pipe that it prints to is closed
        _write(page, data, targets)
    return 0 if page.complete else INTERRUPTED


def _write(page: Page, data: str, targets: Targets) -> None:
    json_path, png_path = targets.paths(page)
    try:
        if json_path:
            write_text(json_path, data + "\n")
            _say(f"written: {json_path}")
    except OSError as error:
        line = json.dumps(json.loads(data))
        print(f"\nThe JSON could not be saved, so here it is:\n{line}", flush=True)
        raise CourseError(describe_os_error(error, "the results could not be saved")) from None
    try:
        if png_path:
            # imported here, for matplotlib takes a second to load
            from amp_course.speed.bench.figures import bench_figure

            with replacing(png_path) as part:
                bench_figure(page, recommend(page)).savefig(part, format="png")
            _say(f"written: {png_path}")
    except OSError as error:
        raise CourseError(describe_os_error(error, "the picture could not be saved")) from None


def _device(name: str | None) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise CourseError(
            "torch finds no CUDA device here: leave --device out, or measure the CPU by `--device "
            "cpu`."
        )
    return torch.device(name) if name else pick_device()


def _check_folder(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        error.filename = str(folder)  # not the name of the temporary file
        raise CourseError(describe_os_error(error, f"nothing can be written to {folder}")) from None


def _stem(page: Page) -> str:
    """Return a file's name without its ending: "bench-cpu-amd-epyc-2026-11-23"."""
    model = re.sub(r"[^a-z0-9]+", "-", page.machine["device_name"].lower()).strip("-")[:40]
    device = torch.device(page.machine["device"]).type
    return f"{BENCHMARK}-{device}-{model or 'unknown'}-{page.date[:10]}"


@contextlib.contextmanager
def _progress(seconds: float) -> Iterator[Tick]:
    """Show a bar on stderr, if that is a terminal."""
    from tqdm import tqdm

    if not sys.stderr.isatty():
        yield lambda what, done: None
        return
    with tqdm(
        total=seconds, leave=False, bar_format="{desc:<32.32} {percentage:3.0f}% |{bar}| {elapsed}"
    ) as bar:

        def tick(what: str, done: float) -> None:
            bar.set_description_str(what, refresh=False)
            bar.update(done)
            bar.refresh()

        yield tick


def _say(words: str) -> None:
    """Write a line to stderr, so that a page or JSON on stdout can be piped."""
    print(words, file=sys.stderr, flush=True)
