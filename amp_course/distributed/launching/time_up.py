"""Say what the ranks of a run were doing when its time was up."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_course.distributed.launching.evidence import Evidence, Place, Rank
from amp_course.distributed.launching.wording import EQUALLY_OFTEN, names, short


def explain_time_up(evidence: Evidence) -> str:
    """Say which ranks had finished, which had not, where these were, and what may help."""
    began = f"time was up after {evidence.ended.seconds:.0f} seconds"
    absent = [rank for rank in evidence.ranks if not rank.started]
    if len(absent) == len(evidence.ranks):
        if evidence.nodes > 1:
            node = (
                "one node never joined"
                if len(evidence.ended.codes) == evidence.nodes
                else (f"{len(evidence.ended.codes)} of {evidence.nodes} nodes joined")
            )
            return (
                f"{began}, and no rank had started: the rendezvous was never complete, because "
                f"{node}. Start `torchrun` on "
                "every node, with the same `--nnodes` and `--rdzv-endpoint`."
            )
        return f"{began}, and no rank had started. What torchrun printed is in `run.launcher`."
    done = [rank for rank in evidence.ranks if rank.end]
    busy = [rank for rank in evidence.ranks if rank.started and not rank.end]
    told = [f"{names(done)} had finished"] if done else []
    told += [_still(alike) for alike in _by_place(busy)]
    told += [f"{names(absent)} had not started"] if absent else []
    return f"{began}: {'; '.join(told)}. {_cure(busy, done, evidence)}"


def _by_place(ranks: Sequence[Rank]) -> list[list[Rank]]:
    """Put together the ranks that were at the same place."""
    found: dict[Place | None, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(rank.place, []).append(rank)
    return list(found.values())


def _still(ranks: Sequence[Rank]) -> str:
    place, verb = ranks[0].place, "was" if len(ranks) == 1 else "were"
    where = f"at line {place.line}, `{short(place.source)}`" if place else "running"
    waiting = (
        f", waiting for other ranks in `{place.collective}`" if place and place.collective else ""
    )
    return f"{names(ranks)} {verb} still {where}{waiting}"


def _cure(busy: Sequence[Rank], done: Sequence[Rank], evidence: Evidence) -> str:
    waiting = [rank for rank in busy if rank.place and rank.place.collective]
    if not waiting:
        return (
            "Look at that line, or pass a larger `seconds` if the script needs longer."
            if busy
            else (
                "Their scripts have finished, but their processes have not ended: join their "
                "threads and subprocesses."
            )
        )
    if len(waiting) == len(busy) and all(_joins(rank) for rank in waiting):
        wanted = _world_size(evidence)
        if wanted not in (None, len(evidence.ranks)):
            run = f"The script asks for world_size={wanted}, and {len(evidence.ranks)} ranks run"
            return f"{run}: leave `world_size` out, torchrun sets it."
        if evidence.ended.foreign_ports:
            port = evidence.ended.foreign_ports[0]
            return (
                f"They are connected to port {port}, which is in use by a program outside this "
                f"run: take another port, "
                "or leave it to torchrun by `init_process_group()` without an address."
            )
        return (
            "The ranks never found each other: use one address and a free port on all of them, and "
            "a `world_size` of "
            f"{len(evidence.ranks)}. torchrun sets all three; `init_process_group()` without "
            f"arguments takes them."
        )
    if (
        done
        or len(waiting) < len(busy)
        or len({rank.place.line for rank in waiting if rank.place}) > 1
    ):
        return EQUALLY_OFTEN
    return "Pass a larger `seconds` if the script only needs longer."


def _joins(rank: Rank) -> bool:
    joining = ("init_process_group", "new_group", "rendezvous")
    return rank.place is not None and rank.place.collective in joining


def _world_size(evidence: Evidence) -> int | None:
    """Return the `world_size` that the script's call of init_process_group writes as a number,
    if it does.
    """
    try:
        tree = ast.parse(evidence.script.read_text(errors="replace"))
    except SyntaxError:
        return None
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("init_process_group"):
            for keyword in call.keywords:
                if keyword.arg == "world_size" and isinstance(keyword.value, ast.Constant):
                    return (
                        int(keyword.value.value) if isinstance(keyword.value.value, int) else None
                    )
    return None
