"""What autocast did to each op, as `probe` found it, and how the published lists differ."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from amp_course.autocast.call_stack import has_autocast_kernel
from amp_course.kit.dtypes import dtype_name
from amp_course.kit.toml_data import read_toml

_PUBLISHED = read_toml(__file__, "published.toml")
TEXT: dict[str, list[str]] = _PUBLISHED["text"]
REFERENCE: dict[str, dict[str, list[str]]] = _PUBLISHED["reference"]

VERDICTS = {
    "lower": "float inputs are cast to {lower}",
    "fp32": "runs in float32, whatever comes in",
    "widest": "all inputs are cast to the widest among them",
    "unchanged": "autocast leaves it alone: the inputs' dtypes decide",
    "refused": "raises an error inside the region, by design",
    "cannot run": "could not be run here, so nothing is claimed",
}


@dataclass(frozen=True)
class Probed:
    """What autocast did to one op.

    outputs: the dtype of the result for inputs in "fp32", in the "lower" dtype, and "mixed" (only
             the first one lower); None if the call raised, as kernels do for dtypes that they lack
    message: what was raised, if the verdict is "refused" or "cannot run"; else a remark, or empty
    """

    op: str
    group: str
    verdict: str
    outputs: dict[str, torch.dtype | None]
    message: str = ""


@dataclass(frozen=True)
class Disagreement:
    """An op whose printed verdict, `listed`, differs from the probe's; maybe "not listed"."""

    op: str
    listed: str
    verdict: str
    why: str


@dataclass(frozen=True)
class Policy:
    """What autocast did to each op, by name: `policy["softmax"].verdict` → "fp32"."""

    device_type: str
    dtype: torch.dtype
    fake: bool  # True if probed on fake tensors
    probed: dict[str, Probed] = field(repr=False)

    def __getitem__(self, op: str) -> Probed:
        """Return an op's row. Raises KeyError, with similar names, if it was not probed."""
        if op not in self.probed:
            near = ", ".join(name for name in self.probed if name.startswith(op[:3]))
            raise KeyError(f"{op!r} was not probed; there is: {near or 'none that begins so'}")
        return self.probed[op]

    def __iter__(self) -> Iterator[Probed]:
        return iter(self.probed.values())

    def __len__(self) -> int:
        return len(self.probed)

    def having(self, verdict: str) -> list[str]:
        """Return the ops with a verdict, in order: "refused" → ["binary_cross_entropy"] on CUDA."""
        return [row.op for row in self if row.verdict == verdict]

    def disagreements(self, source: str = "text") -> list[Disagreement]:
        """Return, op by op, where a printed list differs from the probe, and why.

        source: "text" for the two CUDA lists of a post of 2023-08-16 (see `published`), "reference"
                for PyTorch's own reference of this kind of device. Ops that could not be run are
                left out.
        Raises ValueError for another source, and for a reference that PyTorch has not printed.
        """
        lists = _lists(source, self.device_type)
        listed = {op: verdict for verdict, ops in lists.items() for op in ops}
        rows = []
        for row in self:
            printed = listed.get(row.op, "not listed")
            agrees = row.verdict == (printed if printed != "not listed" else "unchanged")
            if not agrees and row.verdict != "cannot run":
                why = _why(row, source, self.device_type)
                rows.append(Disagreement(row.op, printed, row.verdict, why))
        return rows

    def __str__(self) -> str:
        lines = [f"{len(self)} ops under autocast({self.device_type!r}, {self.dtype}){self._how()}"]
        for verdict, meaning, ops in self._by_verdict():
            names = textwrap.indent(textwrap.fill(" ".join(ops), 98), "  ")
            lines += [f"\n{verdict}: {meaning} ({len(ops)})", names]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = ""
        for verdict, meaning, ops in self._by_verdict():
            names = " ".join(f"<code>{html.escape(op)}</code>" for op in ops)
            rows += (
                f"<tr><th style='text-align:left;vertical-align:top'>{verdict}<br>"
                f"<small>{len(ops)} {'op' if len(ops) == 1 else 'ops'}</small></th>"
                f"<td style='text-align:left'><em>{meaning}</em><br>{names}</td></tr>"
            )
        region = html.escape(f"autocast({self.device_type!r}, {self.dtype})", quote=False)
        head = f"{len(self)} ops under <code>{region}</code>{self._how()}"
        return f"<table><caption>{head}</caption>{rows}</table>"

    def _how(self) -> str:
        return ", on fake tensors, which compute nothing" if self.fake else ""

    def _by_verdict(self) -> Iterator[tuple[str, str, list[str]]]:
        for verdict, meaning in VERDICTS.items():
            if ops := self.having(verdict):
                yield verdict, meaning.format(lower=dtype_name(self.dtype)), ops


def _lists(source: str, device_type: str) -> Mapping[str, Sequence[str]]:
    if source == "text":
        return TEXT
    if source == "reference" and device_type in REFERENCE:
        return REFERENCE[device_type]
    printed = ", ".join(map(repr, REFERENCE))
    raise ValueError(
        f"there is no list {source!r} for {device_type!r}: ask for 'text', or for 'reference' on "
        f"one of {printed}."
    )


# explanations for ops on the CPU to which no rule of `_why` applies
_CPU_EXCEPTIONS = {
    "_convolution": "PyTorch casts in its older signature; this call has the newer one, with "
    "allow_tf32",
    "GRUCell": "built from linear, which is cast; the hidden state stays float32, and so does "
    "what comes out",
    "LSTMCell": "built from linear, which is cast; the cell state stays float32, and so does what "
    "comes out",
    "mv": "the CPU's list has mm, bmm and matmul, no mv; `matrix @ vector` is a matmul, and is "
    "cast",
}


def _why(row: Probed, source: str, device_type: str) -> str:
    if device_type == "cpu" and row.op in _CPU_EXCEPTIONS:
        return _CPU_EXCEPTIONS[row.op]
    device = device_type.upper()
    if source == "text" and row.op in REFERENCE.get(device_type, {}).get(row.verdict, ()):
        reason = "the text's lists are CUDA's, the CPU has its own"
        if device == "CUDA":
            reason = "the text leaves it out"
        return f"{reason}: PyTorch's reference has it under {row.verdict!r}"
    if row.verdict == "unchanged":
        reason = "the text's lists are CUDA's"
        if source == "reference":
            reason = "the reference is wrong here"
        return f"{reason}: the {device} has no cast for it, so the inputs' dtypes decide"
    if has_autocast_kernel(row.op, device_type):
        return "PyTorch casts it, though its reference does not say so"
    return "built from ops that are cast, and not itself on any list"
