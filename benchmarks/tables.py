"""Write the records of the benchmarks as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amp_course.kit.measure import seconds_text
from amp_course.loop.recipe import RECIPES
from benchmarks.peers import LABELS


def steps_text(speed: float) -> str:
    """Return steps per second to three figures: 66.7, 127."""
    return f"{speed:.0f}" if speed >= 99.5 else f"{speed:.1f}"


def _machine(record: dict[str, Any]) -> str:
    machine, threads = record["machine"], record["settings"]["threads"]
    cpu = f"{threads} thread{'s' if threads > 1 else ''}"
    how = (
        f"CUDA {machine['cuda_version']}"
        if machine["cuda_version"] and machine["device"] != "cpu"
        else cpu
    )
    return f"{machine['device_name']}, {how}, torch {machine['torch_version'].partition('+')[0]}"


def tables(records: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """Return the records of each benchmark as Markdown."""
    parts = {
        "peers": _peers,
        "timer": _timer,
        "rounding": _rounding,
        "scaler": _scaler,
        "recipes": _recipes,
        "panels": _panels,
        "auditor": _auditor,
        "explain": _explain,
        "predictions": _predictions,
        "launchers": _launchers,
    }
    return "\n".join(
        line for name, part in parts.items() for line in part(records.get(name, ()))
    ).strip()


def _peers(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        lines += [
            f"**Loops**, {heading(record)}. Steps per second; the ratio's quartiles in brackets.",
            "",
            "| workload | recipe | course | Accelerate | Fabric | course / better peer | AMP / "
            "fp32, course |",
            "|---|---|---|---|---|---|---|",
        ]
        for found in record["workloads"].values():
            for recipe, values in found["recipes"].items():
                sides = values["sides"]
                speeds = [
                    steps_text(sides[n]["steps_per_second"]["median"]) if n in sides else "–"
                    for n in LABELS
                ]
                ratio, gain = values["ratio"], values["over_fp32_course"]["course"]["median"]
                cells = [
                    found["title"],
                    RECIPES[recipe].label,
                    *speeds,
                    _with_quartiles(ratio, ".3f"),
                ]
                lines.append(
                    "| " + " | ".join([*cells, "–" if recipe == "fp32" else f"{gain:.2f}"]) + " |"
                )
        lines += [*(f"\nLeft out: {why}." for why in record["left_out"].values()), ""]
    return lines


def _timer(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        clock = seconds_text(record["start_stop_seconds"]["median"])
        lines += [
            f"**Measuring**, {heading(record)}. StepTimer's start and stop together take {clock}.",
            "",
            "| workload | recipe | bare step | clock and logs, end to end | as on a tiny net | "
            "the clock alone | counting bytes, once |",
            "|---|---|---|---|---|---|---|",
        ]
        for found in record["workloads"].values():
            for recipe, values in found["recipes"].items():
                step = values["bare_seconds_per_step"]["median"]
                extra = values["defaults"]["extra_seconds"]["median"]
                cells = [found["title"], RECIPES[recipe].label, seconds_text(step)]
                cells += [
                    _with_quartiles(values["cost"], "+.2%"),
                    f"{values['overhead_share_of_step']:.2%}",
                ]
                cells += [f"{values['start_stop_share_of_step']:.3%}"]
                lines.append(
                    "| "
                    + " | ".join([*cells, f"{extra * 1e3:.0f} ms, {extra / step:.1f} steps"])
                    + " |"
                )
        lines.append("")
    return lines


def _rounding(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        lines += [
            f"**Rounding**, {heading(record)}. "
            f"{next(iter(record['workloads'].values()))['numbers']:,} float32 numbers; all "
            "sides gave the same results to the last bit. Above 1 the course is the faster one; "
            "quartiles in brackets.",
            "",
            "| format | `round_to` | course / torch's cast | course / ml_dtypes (fp16: numpy) "
            "| course / gfloat, the faster way |",
            "|---|---|---|---|---|",
        ]
        for fmt, found in record["workloads"].items():
            ratios = found["course_over"]
            cast = (
                "numpy cast" if "numpy cast" in ratios else "ml_dtypes"
            )  # on a GPU there is neither
            cells = [fmt, seconds_text(found["seconds"]["course"]["median"])]
            cells += [
                _with_quartiles(ratios[name], ".2f") if name in ratios else "–"
                for name in ("torch cast", cast, found["best_gfloat"])
            ]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def _scaler(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        count = next(iter(record["workloads"].values()))["parameters"]
        lines += [
            f"**Scalers**, {heading(record)}. {count:,} parameters; both sides ended with the "
            f"same weights, losses and state "
            "to the last bit. Above 1 the course's takes longer; quartiles in brackets.",
            "",
            "| workload | `DynamicScaler` | `torch.amp.GradScaler` | course's time / torch's | "
            "aim |",
            "|---|---|---|---|---|",
        ]
        for name, found in record["workloads"].items():
            cells = [
                name,
                *(seconds_text(found["seconds"][side]["median"]) for side in ("course", "torch")),
            ]
            lines.append(
                "| "
                + " | ".join(
                    [*cells, _with_quartiles(found["cost"], ".3f"), f"≤ {found['limit']:g}"]
                )
                + " |"
            )
        lines.append("")
    return lines


def _recipes(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        lines += [
            f"**Recipes**, {heading(record)}. O1 through its class and as the cells of chapter 06 "
            f"write it; both sides ended "
            "with the same weights, losses and state to the last bit. Above 1 the class takes "
            "longer; quartiles in brackets.",
            "",
            "| workload | O1 | plain cells | O1's time / plain cells' | more a step | aim |",
            "|---|---|---|---|---|---|",
        ]
        for name, found in record["workloads"].items():
            title = f"{name}, width {found['width']}, batch {found['batch_size']}, {found['dtype']}"
            times = [seconds_text(found["seconds"][side]["median"]) for side in ("recipe", "plain")]
            more = f"{found['extra_seconds']['median'] * 1e6:+.0f} µs"
            aim = f"≤ {found['limit']:g}" if name == "SimpleNet" else "–"
            lines.append(
                "| "
                + " | ".join([title, *times, _with_quartiles(found["cost"], ".3f"), more, aim])
                + " |"
            )
        lines.append("")
    return lines


def _panels(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        lines += [
            f"**Panels**, {heading(record)}. From a control's event to the new view, in "
            f"milliseconds.",
            "",
            "| panel | events | median | 95th percentile | aim |",
            "|---|---|---|---|---|",
        ]
        for name, found in record["workloads"].items():
            cells = [
                f"{found['events']}",
                f"{found['median_ms']:.1f}",
                f"{found['p95_ms']:.1f}",
                f"≤ {found['limit_ms']:g}",
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def _auditor(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        one = next(iter(record["workloads"].values()))
        lines += [
            f"**Auditor**, {heading(record)}. The digits ResNet, {one['parameters']:,} "
            f"parameters, batch {one['batch']}; an "
            "audit with `loss=` and `max_norm=`. Quartiles in brackets.",
            "",
            "| loop | step | audit | audit / step | may take |",
            "|---|---|---|---|---|",
        ]
        for name, found in record["workloads"].items():
            times = [seconds_text(found["seconds"][side]["median"]) for side in ("step", "audit")]
            cells = [
                name,
                *times,
                _with_quartiles(found["steps"], ".0f"),
                seconds_text(found["limit_seconds"]),
            ]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def _explain(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        lines += [
            f"**Planted causes**, {heading(record)}. Steps with one fault each, and what "
            f"`explain` named; {record['named_first']} of {len(record['planted'])} first. "
            f"Quartiles in brackets.",
            "",
            "| planted | step | fixed | named | named once fixed | kinds / step | recorded / step "
            "|",
            "|---|---|---|---|---|---|---|",
        ]
        for name, tried in record["planted"].items():
            times = [_milliseconds(tried[side]) for side in ("plain_seconds", "fixed_seconds")]
            times[1] = times[1] if tried["same_work"] else "(another net)"
            ratios = [
                f"{tried[ratio]:.2f}" for ratio in ("kinds_over_plain", "recorded_over_plain")
            ]
            named = [
                ", ".join(causes) or "–"
                for causes in (tried["named"], tried.get("named_when_fixed", ["not tried"]))
            ]
            lines.append("| " + " | ".join([name, *times, *named, *ratios]) + " |")
        lines += [
            "",
            f"**Predicted speed-up of AMP**, {heading(record)}.",
            "",
            "| workload | ceiling | predicted | measured | error | casts | other ops | memory | "
            "unexplained |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for found in record["workloads"].values():
            ratios = [f"{found[name]:.3f}" for name in ("ceiling", "predicted", "measured")]
            parts = ("casts", "other ops", "memory", "unexplained")
            gap = [f"{found['gap_seconds'][part] * 1e3:+.2f} ms" for part in parts]
            lines.append(
                "| "
                + " | ".join([found["workload"], *ratios, f"{found['error']:+.1%}", *gap])
                + " |"
            )
        lines.append("")
    return lines


def _predictions(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        lines += [
            f"**Predicted and measured**, {heading(record)}. AMP bf16 over fp32: from the data "
            f"sheet (5 µs a launch, no "
            "optimizer), from the ops' own prices here, and measured; how much of the AMP step "
            "the CPU spends on queueing ops; then each recipe's speed over fp32's, in brackets "
            "its share of the best matmul rate measured here.",
            "",
            "| workload | data sheet | predicted | measured | error | queueing | TF32 | AMP fp16 "
            "| AMP bf16 |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for found in record["workloads"].values():
            ratios = [
                f"{one:.2f}"
                for one in (found["data_sheet"]["speedup"], found["predicted"], found["measured"])
            ]
            queueing = found["queueing_seconds"]["amp_measured"] / found["seconds"]["amp"]
            recipes = [
                f"{found['over_fp32'][name]['median']:.2f} ({found['share_of_peak'][name]:.0%})"
                for name in ("tf32", "amp_fp16", "amp_bf16")
            ]
            cells = [found["title"], *ratios, f"{found['error']:+.0%}", f"{queueing:.0%}", *recipes]
            lines.append("| " + " | ".join(cells) + " |")
        lines += [
            "",
            *(
                [f"{record['note'][0].upper()}{record['note'][1:]}.", ""]
                if "note" in record
                else []
            ),
        ]
    return lines


def _launchers(records: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        lines += [
            f"**Start-up**, {heading(record)}. Two ranks over gloo, from the command to their "
            f"first all-reduce; quartiles in "
            "brackets.",
            "",
            "| launcher | seconds |",
            "|---|---|",
        ]
        found = record["launchers"]
        lines += [
            f"| {name} | {_with_quartiles(taken, '.2f')} |"
            for name, taken in found["start_up_seconds"].items()
        ]
        lines += [*(f"\nLeft out: {name}. {why}." for name, why in found["left_out"].items()), ""]
    return lines


def _milliseconds(values: dict[str, float]) -> str:
    return _with_quartiles({name: 1e3 * value for name, value in values.items()}, ".2f") + " ms"


def heading(record: dict[str, Any]) -> str:
    """Say where and when a record was made."""
    return f"{_machine(record)}, {record['date'][:10]}"


def _with_quartiles(values: dict[str, float], form: str) -> str:
    return f"{values['median']:{form}} ({values['q1']:{form}} to {values['q3']:{form}})"
