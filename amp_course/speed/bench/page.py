"""The page of a machine as data: what `amp-course bench` measured, and how it is read back from
JSON.

People send each other these files. They hold no user or host names and no paths, and a number that
makes no sense is refused when one is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from amp_course.kit.measure import busy_text
from amp_course.loop.recipe import RECIPES
from amp_course.speed.machine import Machine
from amp_course.speed.prediction import Prediction

BENCHMARK, SCHEMA = "bench", 1  # raise SCHEMA when a reader of the JSON would have to change
SIDES, GAP = ("fp32", "amp"), ("casts", "other ops", "memory", "unexplained")


@dataclass(frozen=True)
class Result:
    """One training under one recipe, which took turns with the same training in fp32.

    workload, title: its name ("simple_net"), and as people read it, with its size
    share, factor, ceiling, predicted: as in `prediction.Prediction`; `predicted` is None on
        older pages, where the ops' prices added up to nonsense
    seconds: of the fastest step, for each of SIDES; median, quartiles: of all that were timed
    gap_seconds: what lies between the ceiling and the step, for each of GAP; a negative part is a
                 gain
    ops:         of forward and backward, for each of SIDES
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
    quartiles: Mapping[str, tuple[float, float]]
    gap_seconds: Mapping[str, float]
    ops: Mapping[str, int]

    @property
    def measured(self) -> float:
        """The speed-up of the fastest steps: fp32's time over the recipe's."""
        return self.seconds["fp32"] / self.seconds["amp"]

    @property
    def median_speedup(self) -> float:
        """The speed-up of the median steps."""
        return self.median["fp32"] / self.median["amp"]

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the most speed-up that the quartiles allow:
        fp32's lower over the recipe's upper one, and vice versa.
        """
        fp32, amp = self.quartiles["fp32"], self.quartiles["amp"]
        return fp32[0] / amp[1], fp32[1] / amp[0]

    @property
    def label(self) -> str:
        """The recipe as people read it: "AMP bf16"."""
        return label_of(self.recipe)

    @classmethod
    def of(cls, workload: str, prediction: Prediction) -> Result:
        """Keep what a page needs of a prediction. Raises ValueError for one whose times are 0 or
        not finite.
        """
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
        """Read what `asdict` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        predicted = data["predicted"]
        return cls(
            workload=_text(data["workload"]),
            title=_text(data["title"]),
            recipe=_text(data["recipe"]),
            share=_number(data["share"], least=0.0),
            factor=_positive(data["factor"]),
            ceiling=_positive(data["ceiling"]),
            predicted=None if predicted is None else _positive(predicted),
            seconds={name: _positive(data["seconds"][name]) for name in SIDES},
            median={name: _positive(data["median"][name]) for name in SIDES},
            quartiles={name: _pair(data["quartiles"][name]) for name in SIDES},
            gap_seconds={name: _number(data["gap_seconds"][name]) for name in GAP},
            ops={name: int(_number(data["ops"][name], least=0.0)) for name in SIDES},
        )


@dataclass(frozen=True)
class LeftOut:
    """A training that was not compared with fp32, and why;
    `times_fp32` is how many times as long its step takes, if known.
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
    settings: what was asked for, and what was set from outside; "waited" is the share of the run in
              which the process waited for a CPU, None if not known
    machine:  `kit.hardware.machine_report().to_dict()`
    measured: rates, bandwidth, launch; None if it did not get that far
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
        """Why nothing can be told from these numbers;
        "" on a quiet machine, or where it is not known.
        """
        waited = self.settings.get("waited")
        return busy_text(waited if isinstance(waited, int | float) else None)

    def titles(self) -> tuple[str, ...]:
        """Return the trainings' titles, those with a result first."""
        return tuple(
            dict.fromkeys(
                [*(one.title for one in self.results), *(one.title for one in self.left_out)]
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings, ready for JSON."""
        measured = self.measured and {**self.measured.to_dict(), "ridges": ridges(self.measured)}
        return {"benchmark": BENCHMARK, "schema": SCHEMA, **asdict(self), "measured": measured}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Page:
        """Read what `to_dict` wrote. Raises KeyError, TypeError,
        ValueError or AttributeError for anything else.
        """
        measured = None if data["measured"] is None else Machine.from_dict(data["measured"])
        if measured:
            measured.roofline()  # refuses rates, a bandwidth and a launch that no machine has
        return cls(
            date=_text(data["date"]),
            complete=bool(data["complete"]),
            took_seconds=_number(data["took_seconds"]),
            versions={str(name): _text(one) for name, one in data["versions"].items()},
            settings=dict(data["settings"]),
            machine={**data["machine"], "device_name": _text(data["machine"]["device_name"])},
            measured=measured,
            results=tuple(map(Result.from_dict, data["results"])),
            left_out=tuple(
                LeftOut(
                    _text(one["title"]),
                    _text(one["recipe"]),
                    _text(one["why"]),
                    _maybe(one["times_fp32"]),
                )
                for one in data["left_out"]
            ),
        )


def label_of(recipe: str) -> str:
    """Write a recipe as people read it: "amp_bf16" → "AMP bf16";
    a newer course's recipe keeps its name.
    """
    return RECIPES[recipe].label if recipe in RECIPES else recipe


def ridges(machine: Machine) -> dict[str, float]:
    """Return the FLOPs per byte from which on a format's matmuls are bound by compute,
    by format.
    """
    roofline = machine.roofline()
    return {fmt: roofline.ridge(fmt) for fmt in roofline.peak_flops}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: Any, least: float = -math.inf) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (math.isfinite(value) and value >= least)
    ):
        raise ValueError(f"{value!r} is not a number that can be measured")
    return float(value)


def _positive(value: Any) -> float:
    if _number(value) <= 0:
        raise ValueError(f"{value!r} is not above 0")
    return float(value)


def _maybe(value: Any) -> float | None:
    return None if value is None else _positive(value)


def _pair(values: Any) -> tuple[float, float]:
    first, second = values
    return _positive(first), _positive(second)
