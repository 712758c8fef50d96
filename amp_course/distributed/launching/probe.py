"""Join the other ranks, all-reduce a number, and record when that was done and which variables the
launcher had set.

A launcher starts `python probe.py FOLDER` once for each rank; `python probe.py FOLDER spawn 2 PORT`
starts two ranks on its own. Rank 1 writes FOLDER/probe1.json: {"done": seconds since 1970,
"environment": {…}}.
"""

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist


def spawned(rank: int, folder: str, ranks: int, port: int) -> None:
    """Be one rank that torch.multiprocessing.spawn started, which sets no variables."""
    join(folder, init_method=f"tcp://localhost:{port}", rank=rank, world_size=ranks)


def join(folder: str, **place: Any) -> None:
    """Be one rank; without `place`, the rank that the environment variables describe."""
    environment = dict(os.environ)
    dist.init_process_group("gloo", **place)
    total = torch.ones(1)
    dist.all_reduce(total)
    done = time.time()
    assert total.item() == dist.get_world_size()
    with open(os.path.join(folder, f"probe{dist.get_rank()}.json"), "w") as file:
        json.dump({"done": done, "environment": environment}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[2:3] == ["spawn"]:
        ranks, port = int(sys.argv[3]), int(sys.argv[4])
        torch.multiprocessing.spawn(spawned, (sys.argv[1], ranks, port), nprocs=ranks)
    else:
        # the old launcher adds --local-rank
        join(next(word for word in sys.argv[1:] if not word.startswith("--")))
