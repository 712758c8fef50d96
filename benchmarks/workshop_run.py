"""One workshop: what the learners do, and what is measured meanwhile."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from benchmarks.interleaved import spread
from benchmarks.learner import Kernel, Learner, check_of
from benchmarks.workshop_hub import PASSWORD, ROOT, Hub, cpu_seconds, largest_peak_mb, memory_mb

CHAPTERS = ("01_bits", "05_scaler", "06_loop")
# what people are called; the rest are numbered
NAMES = ("ana maria", "li.wei", "зоя")
POLL_SECONDS = 10
MATMULS = """
import time, torch
torch.set_num_threads({threads})
a, count, until = torch.rand(512, 512), 0, time.monotonic() + {seconds}
while time.monotonic() < until:
    a @ a
    count += 1
print(count)
"""
Found = dict[str, Any]


class Run:
    """One workshop: the learners, what was asked for, and the record."""

    def __init__(self, chosen: argparse.Namespace, hub: Hub) -> None:
        count = chosen.learners
        names = [*NAMES, *(f"learner{number:03d}" for number in range(len(NAMES) + 1, count + 1))]
        self.learners = [Learner(hub.url, name, PASSWORD) for name in names[:count]]
        self.chosen, self.hub = chosen, hub
        self.pool = ThreadPoolExecutor(count)
        self.errors: list[Found] = []  # of cells that are not meant to fail

    def together(self, do: Callable[[Learner], Any]) -> list[Any]:
        """Let all learners do something at the same moment; return what came of it, in order."""
        barrier = threading.Barrier(len(self.learners))

        def one(learner: Learner) -> Any:
            barrier.wait()
            return do(learner)

        return list(self.pool.map(one, self.learners))

    def start_up(self) -> Found:
        """Time from the log-in to the first result of chapter 01: one alone, then the others at
        once.
        """
        source = _cells("notebooks", CHAPTERS[0])[0]["source"]

        def begin(learner: Learner) -> float:
            began = time.perf_counter()
            learner.log_in()
            kernel = learner.open(f"notebooks/{CHAPTERS[0]}.ipynb")
            kernel.run(source)
            return time.perf_counter() - began

        alone = begin(self.learners[0])
        others = list(self.pool.map(begin, self.learners[1:]))
        self.together(Learner.close)
        self.together(lambda one: one.open(f"notebooks/{CHAPTERS[0]}.ipynb"))
        found = {
            "alone_seconds": round(alone, 2),
            "at_once": len(others),
            "at_once_seconds": _range(others),
            "memory_server_and_empty_kernel": self.memory(),
        }
        self.together(Learner.close)
        return found | {"memory_server": self.memory()}

    def chapter(self, stem: str) -> Found:
        """Let all run a chapter and its exercises; leaves both notebooks open."""
        path = f"notebooks/{stem}.ipynb"
        notebook = json.loads((ROOT / path).read_text("utf-8"))

        def read(learner: Learner) -> float:
            began = time.perf_counter()
            self.run_cells(learner, learner.open(path), "notebooks", stem)
            learner.save(path, notebook)
            return time.perf_counter() - began

        first = self.learners[0]
        before = cpu_seconds(self.hub.groups()[first.name])
        alone = read(first)
        found: Found = {
            "run_alone_seconds": round(alone, 1),
            "run_alone_cpu_seconds": round(cpu_seconds(self.hub.groups()[first.name]) - before, 1),
        }
        first.close()
        found["run_at_once_seconds"] = _range(self.together(read))
        found["memory_chapter"] = self.memory()
        found["panel"] = self.in_turn(lambda one: one.kernels[path].move())
        work, before = f"my_work/{stem}.ipynb", cpu_seconds(self.hub.groups()[first.name])
        self.together(lambda one: self.run_cells(one, one.open(work), "solutions", stem))
        spent = cpu_seconds(self.hub.groups()[first.name]) - before
        found["exercises_cpu_seconds"] = round(spent, 1)
        found["memory_chapter_and_exercises"] = self.memory()
        found["checks"] = self.checks(stem)
        return found

    def run_cells(self, learner: Learner, kernel: Kernel, folder: str, stem: str) -> None:
        """Run a notebook's code cells in order; note those that fail and are not meant to."""
        for number, cell in enumerate(_cells(folder, stem), 1):
            tags = cell["metadata"].get("tags", [])
            if "solution-only" in tags:
                continue
            reply = kernel.run(cell["source"])
            if reply.error and "raises-exception" not in tags:
                place = {"learner": learner.name, "notebook": f"{folder}/{stem}", "cell": number}
                self.errors.append({**place, "error": reply.error})

    def in_turn(self, act: Callable[[Learner], float | None]) -> Found:
        """Time an act of one learner alone and of all at once, in turn."""
        alone, at_once = [], []
        for number in range(self.chosen.rounds):
            alone.append(act(self.learners[number % len(self.learners)]))
            at_once += self.together(act)
        ours, theirs = ([one for one in side if one is not None] for side in (alone, at_once))
        if not ours or not theirs:
            return {}
        return {
            "alone_seconds": spread(ours),
            "at_once_seconds": spread(theirs),
            "slowest_at_once_seconds": round(max(theirs), 3),
            "times": round(statistics.median(theirs) / statistics.median(ours), 2),
        }

    def checks(self, stem: str) -> Found:
        """Time each exercise's check: alone, all at once, and all at moments of their own."""
        answers = [
            cell["source"]
            for cell in _cells("solutions", stem)
            if any(tag.startswith("answer-") for tag in cell["metadata"].get("tags", []))
        ]
        code = dict(filter(None, map(check_of, answers)))

        def check(name: str) -> Callable[[Learner], float]:
            return lambda learner: self._checked(learner, stem, name, code[name])

        found = {name: self.in_turn(check(name)) for name in code}
        alone = {name: one["alone_seconds"]["median"] for name, one in found.items()}
        until = time.monotonic() + self.chosen.pace_seconds

        def at_leisure(learner: Learner) -> list[tuple[str, float]]:
            draw, times = random.Random(learner.name), []
            while True:
                pause = draw.expovariate(1 / self.chosen.pause)
                if time.monotonic() + pause > until:
                    return times
                time.sleep(pause)
                name = draw.choice(list(code))
                times.append((name, check(name)(learner)))

        pressed = [one for times in self.together(at_leisure) for one in times]
        return {
            "by_exercise": found,
            "alone_median_seconds": round(statistics.median(alone.values()), 3),
            "at_once_times": round(statistics.median(one["times"] for one in found.values()), 2),
            "at_leisure": {
                "pause_seconds": self.chosen.pause,
                "checks": len(pressed),
                "seconds": spread([took for _, took in pressed]) if pressed else None,
                "times": spread([took / alone[name] for name, took in pressed])
                if pressed
                else None,
            },
        }

    def _checked(self, learner: Learner, stem: str, name: str, code: str) -> float:
        reply = learner.kernels[f"my_work/{stem}.ipynb"].run(code)
        if reply.error:
            place = {"learner": learner.name, "notebook": f"my_work/{stem}", "cell": name}
            self.errors.append({**place, "error": reply.error})
        return reply.seconds

    def reading(self) -> Found:
        """Measure the CPU that open notebooks take while nobody runs anything."""
        groups = self.hub.groups()
        before = {name: cpu_seconds(group) for name, group in groups.items()}
        began, seconds = time.monotonic(), self.chosen.read_seconds
        while time.monotonic() - began < seconds:
            turn = time.monotonic()
            self.together(Learner.poll)
            time.sleep(max(0, POLL_SECONDS - (time.monotonic() - turn)))
        passed = time.monotonic() - began
        share = {
            name: 100 * (cpu_seconds(group) - before[name]) / passed
            for name, group in groups.items()
        }
        hub = share.pop("")
        return {
            "seconds": round(passed, 1),
            "percent_of_a_core_per_learner": spread(share.values()),
            "percent_of_a_core_hub_and_proxy": round(hub, 2),
        }

    def threads(self) -> Found:
        """Count matmuls a second, one kernel alone and all at once, by threads a kernel."""
        cores = len(os.sched_getaffinity(0))
        found: Found = {"cores": cores, "matmul": "512 x 512, fp32", "by_threads": {}}
        for threads in sorted({1, cores, 8 * cores}):
            seconds = self.chosen.matmul_seconds
            code = MATMULS.format(threads=threads, seconds=seconds)

            def compute(learner: Learner, code: str = code) -> int:
                return int(next(iter(learner.kernels.values())).run(code).text or 0)

            compute(self.learners[0])  # starts the threads
            alone, all_of_them = compute(self.learners[0]), self.together(compute)
            found["by_threads"][str(threads)] = {
                "alone_per_second": round(alone / seconds, 1),
                "all_per_second": round(sum(all_of_them) / seconds, 1),
                "slowest_learner_per_second": round(min(all_of_them) / seconds, 2),
            }
        return found

    def memory(self) -> Found:
        """Measure memory in MB: PSS, which shares out what processes have in common, and what is a
        learner's alone.
        """
        groups = self.hub.groups()
        sums = {name: memory_mb(group) for name, group in groups.items()}
        hub = sums.pop("")
        pss, own = ([one[i] for one in sums.values()] for i in (0, 1))
        return {
            "pss_mb_per_learner": spread(pss),
            "own_mb_per_learner": spread(own),
            "largest_peak_of_a_process_mb": largest_peak_mb([p for n in sums for p in groups[n]]),
            "processes_per_learner": statistics.median(len(groups[name]) for name in sums),
            "in_common_mb": round(sum(pss) - sum(own)),
            "all_learners_mb": round(sum(pss)),
            "hub_and_proxy_mb": round(hub[0]),
            "available_mb": round(psutil.virtual_memory().available / 2**20),
        }


def _cells(folder: str, stem: str) -> list[Found]:
    cells = json.loads((ROOT / folder / f"{stem}.ipynb").read_text("utf-8"))["cells"]
    return [
        {**cell, "source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"
    ]


def _range(seconds: list[float]) -> Found | None:
    """Return median, quartiles and the longest; None of nothing."""
    return spread(seconds) | {"longest": round(max(seconds), 2)} if seconds else None
