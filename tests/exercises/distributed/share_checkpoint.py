"""Answers to `share_checkpoint`, spelt in other ways than the course's own."""

import os
import pathlib
import pickle

import torch
import torch.distributed as dist


def states(model, optimizer, scaler):
    return model.state_dict(), optimizer.state_dict(), scaler.state_dict()


def load(found, model, optimizer, scaler):
    for part, state in zip((model, optimizer, scaler), found, strict=False):
        part.load_state_dict(state)


def by_replacing(path, model, optimizer, scaler):
    if dist.get_rank() == 0:
        torch.save(states(model, optimizer, scaler), path + ".tmp")
        os.replace(path + ".tmp", path)
    dist.barrier()
    load(torch.load(path, map_location="cpu", weights_only=True), model, optimizer, scaler)


def by_broadcast(path, model, optimizer, scaler):
    box = [None]
    if dist.get_rank() == 0:
        box = [states(model, optimizer, scaler)]
        with open(path, "wb") as file:
            torch.save(box[0], file)
    dist.broadcast_object_list(box, src=0)
    if dist.get_rank():
        load(box[0], model, optimizer, scaler)


def by_pickle(path, model, optimizer, scaler):
    file = pathlib.Path(path)
    done = torch.zeros(1)
    if dist.get_rank() == 0:
        file.write_bytes(pickle.dumps(states(model, optimizer, scaler)))
        done += 1
    dist.all_reduce(done)
    load(pickle.loads(file.read_bytes()), model, optimizer, scaler)


def waits_by_looking(path, model, optimizer, scaler):
    if dist.get_rank() == 0:
        torch.save(states(model, optimizer, scaler), path)
    while not os.path.exists(path):
        pass
    load(torch.load(path), model, optimizer, scaler)


def a_file_for_each(path, model, optimizer, scaler):
    mine = f"{path}.{dist.get_rank()}"
    torch.save(states(model, optimizer, scaler), mine)
    dist.barrier()
    load(torch.load(mine), model, optimizer, scaler)


def writes_nothing(path, model, optimizer, scaler):
    box = [states(model, optimizer, scaler)]
    dist.broadcast_object_list(box, src=0)
    load(box[0], model, optimizer, scaler)


def weights_only(path, model, optimizer, scaler):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    model.load_state_dict(torch.load(path))


def barrier_on_rank_0(path, model, optimizer, scaler):
    if dist.get_rank() == 0:
        torch.save(states(model, optimizer, scaler), path)
        dist.barrier()
    else:
        load(torch.load(path), model, optimizer, scaler)


def waits_before_the_writing(path, model, optimizer, scaler):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(states(model, optimizer, scaler), path)
    load(torch.load(path), model, optimizer, scaler)


def shares_the_last_rank(path, model, optimizer, scaler):
    if dist.get_rank() == dist.get_world_size() - 1:
        torch.save(states(model, optimizer, scaler), path)
    dist.barrier()
    load(torch.load(path), model, optimizer, scaler)


RIGHT = {"a temporary name": by_replacing, "a broadcast": by_broadcast, "pickle and an all-reduce": by_pickle}
WRONG = {
    "looks for the file": (waits_by_looking, None),
    "a file for each rank": (a_file_for_each, None),
    "writes nothing": (writes_nothing, None),
    "the weights alone": (weights_only, "the model alone"),
    "a barrier on rank 0": (barrier_on_rank_0, "reads before it is written"),
    "a barrier before the writing": (waits_before_the_writing, "reads before it is written"),
    "the last rank writes": (shares_the_last_rank, None),
}
