"""A machine's page as data: what `amp-course bench` measured, to JSON and back.

People send each other these files, so they hold no user or host names and no paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from amp_course.kit.measure import busy_text
from amp_course.loop.recipe import RECIPES
from amp_course.speed.machine import Machine
from amp_course.speed.prediction import Prediction

BENCHMARK, SCHEMA = "bench", 1  # raise SCHEMA when programs that read the JSON have to change
SIDES = ("fp32", "amp")


@dataclass(frozen=True)
class Result:
    """One training under one recipe, timed in turn with the same training in fp32.

    workload, title: its name ("simple_net"), and the name that people read, with its size
    share, factor, ceiling, predicted: as in `Prediction`; `predicted` is None on some older pages
    seconds:     of the fastest step, for each of SIDES
    median, quartiles: of all timed steps, likewise
    gap_seconds: from `Prediction.gap`
    ops:         the number in forward and backward, for each of SIDES
    """

    workload: str
    title: str
    recipe: str
    share: float
    factor: float
    ceiling: float
    predicted: float | None
    seconds: Mapping[str, float]
    median: Mapping[str, float]
    quartiles: Mapping[str, Sequence[float]]
    gap_seconds: Mapping[str, float]
    ops: Mapping[str, int]

    @property
    def measured(self) -> float:
        """The speed-up of the fastest steps: fp32's time over the recipe's."""
        return self.seconds["fp32"] / self.seconds["amp"]

    @property
    def median_speedup(self) -> float:
        return self.median["fp32"] / self.median["amp"]

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest speed-up that the quartiles allow."""
        fp32, amp = self.quartiles["fp32"], self.quartiles["amp"]
        return fp32[0] / amp[1], fp32[1] / amp[0]

    @property
    def label(self) -> str:
        return label_of(self.recipe)

    @classmethod
    def of(cls, workload: str, prediction: Prediction) -> Result:
        sides = {"fp32": prediction.fp32, "amp": prediction.amp}
        more = {
            "workload": workload,
            "title": prediction.title,
            "median": {name: side.timing.median for name, side in sides.items()},
            "ops": {name: len(side.priced) for name, side in sides.items()},
        }
        return cls.from_dict({**prediction.to_dict(), **more})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        return cls(**{one.name: data[one.name] for one in fields(cls)})


@dataclass(frozen=True)
class LeftOut:
    """A training that was not compared with fp32, and why.

    times_fp32: how many times as long its step takes, if known
    """

    title: str
    recipe: str
    why: str
    times_fp32: float | None = None


@dataclass(frozen=True)
class Page:
    """What one run measured on one machine.

    date:     when it began, in UTC: "2026-11-23T10:20:15+00:00"
    complete: False if it was interrupted
    versions: of "course", "torch" and "python"
    settings: the plan's and the environment's; "waited" is the share of the run in which the
              process waited for a CPU, None if not known
    machine:  `kit.hardware.machine_report().to_dict()`
    measured: rates, bandwidth, launch; None if it was interrupted before
    """

    date: str
    complete: bool
    took_seconds: float
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    measured: Machine | None = None
    results: tuple[Result, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def busy(self) -> str:
        """Why these numbers show nothing; "" on a quiet machine, or where that is not known."""
        return busy_text(self.settings.get("waited"))

    def titles(self) -> tuple[str, ...]:
        """Return the trainings' titles, those with a result first."""
        every: list[Result | LeftOut] = [*self.results, *self.left_out]
        return tuple(dict.fromkeys(one.title for one in every))

    def to_dict(self) -> dict[str, Any]:
        measured = self.measured and {**self.measured.to_dict(), "ridges": ridges(self.measured)}
        return {"benchmark": BENCHMARK, "schema": SCHEMA, **asdict(self), "measured": measured}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Page:
        read = {one.name: data[one.name] for one in fields(cls)}
        read["measured"] = data["measured"] and Machine.from_dict(data["measured"])
        read["results"] = tuple(map(Result.from_dict, data["results"]))
        read["left_out"] = tuple(LeftOut(**one) for one in data["left_out"])
        return cls(**read)


def label_of(recipe: str) -> str:
    """Return a recipe's label: "amp_bf16" → "AMP bf16"; a newer course's recipe keeps its name."""
    return RECIPES[recipe].label if recipe in RECIPES else recipe


def ridges(machine: Machine) -> dict[str, float]:
    """Return, by format, the FLOPs per byte above which compute bounds its matmuls."""
    roofline = machine.roofline()
    return {fmt: roofline.ridge(fmt) for fmt in roofline.peak_flops}
