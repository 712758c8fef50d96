"""Make `Op`s of what ran and who called it: who made each cast, and what came from the cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import torch

from amp_course.autocast.call_stack import Caller
from amp_course.autocast.recorder import Ran, Recorder
from amp_course.autocast.records import CastBy, Op


def ops_of(recorder: Recorder, lower: torch.dtype | None, cached: Collection[int]) -> Iterator[Op]:
    """Yield what ran as `Op`s, in order.

    lower:  the dtype that the region lowers to
    cached: ids of the weights that autocast caches, those that need a gradient. Fake tensors have
            no cache: the second cast of such a weight is left out, as if its copy were cached.
    """
    weights = recorder.weights
    copies: dict[int, str] = {}  # storage of a copy that autocast made → the weight's name
    used: set[int] = set()  # storages of copies that an op has read
    cast_nodes: dict[int, str] = {}  # sequence number of an inserted cast's node → what it cast
    for number, ran in enumerate(recorder.ran):
        caller = recorder.callers.get(number, Caller())
        cast = _cast_by(ran, caller, cast_nodes)
        source = (weights.get(ran.weight) or "activation") if ran.is_cast else ""
        if cast == "gradient" and ran.node is not None:
            source = cast_nodes[ran.node[1]]
        if cast == "autocast":
            cast_nodes[ran.made] = source
        if cast == "autocast" and ran.weight:
            known = source in copies.values()
            copies[ran.copy] = source
            if known and recorder.fake and ran.weight in cached and lower in ran.op.outputs:
                used.add(ran.copy)
                continue
        reused: tuple[str, ...] = ()
        if not ran.op.view and not cast and ran.op.phase == "forward":
            read = ran.read & copies.keys()
            reused = tuple(sorted(copies[storage] for storage in read & used))
            used |= read
        call = ran.node[0] if ran.node and not ran.recomputed else caller.operator or ran.op.op
        yield replace(ran.op, call=call, cast=cast, source=source, reused=reused)


def _cast_by(ran: Ran, caller: Caller, cast_nodes: Mapping[int, str]) -> CastBy:
    if not ran.is_cast:
        return ""
    if ran.node is not None and ran.node[0] == "ToCopyBackward0" and caller.cast_by != "autocast":
        return "gradient" if ran.node[1] in cast_nodes else "model"
    return caller.cast_by
