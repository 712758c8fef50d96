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


def saves(path, what):
    if dist.get_rank() == 0:
        torch.save(what, path)
    dist.barrier()


def shares(model, optimizer, scaler):
    box = [states(model, optimizer, scaler)]
    dist.broadcast_object_list(box, src=0)
    load(box[0], model, optimizer, scaler)


def junk(path, model, optimizer, scaler):
    if dist.get_rank() == 0:
        with open(path, "w") as file:
            file.write("done")
    shares(model, optimizer, scaler)


def model_in_the_file(path, model, optimizer, scaler):
    saves(path, {"model": model.state_dict()})
    shares(model, optimizer, scaler)


def scaler_not_in_the_file(path, model, optimizer, scaler):
    saves(path, [model.state_dict(), optimizer.state_dict()])
    shares(model, optimizer, scaler)


def objects(path, model, optimizer, scaler):
    saves(path, (model, optimizer, scaler))
    load(states(*torch.load(path, weights_only=False)), model, optimizer, scaler)


def removes_first(path, model, optimizer, scaler):
    if dist.get_rank() == 0:
        if os.path.exists(path):
            os.remove(path)
        torch.save(states(model, optimizer, scaler), path + ".new")
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        pass
    load(torch.load(path), model, optimizer, scaler)


def a_log_of_each(path, model, optimizer, scaler):
    by_pickle(path, model, optimizer, scaler)
    with open(f"{path}.{dist.get_rank()}.log", "w") as file:
        file.write("done")


def model_not_loaded(path, model, optimizer, scaler):
    saves(path, states(model, optimizer, scaler))
    load(torch.load(path)[1:], optimizer, scaler, None)


def scaler_not_loaded(path, model, optimizer, scaler):
    saves(path, states(model, optimizer, scaler))
    load(torch.load(path)[:2], model, optimizer, scaler)


RIGHT = {
    "a temporary name": by_replacing,
    "a broadcast": by_broadcast,
    "pickle and an all-reduce": by_pickle,
}
WRONG = {
    "looks for the file": (waits_by_looking, "looks for the file"),
    "a file for each rank": (a_file_for_each, None),
    "writes nothing": (writes_nothing, None),
    "the weights alone": (weights_only, "the model alone"),
    "a barrier on rank 0": (barrier_on_rank_0, "reads before it is written"),
    "a barrier before the writing": (waits_before_the_writing, "reads before it is written"),
    "the last rank writes": (shares_the_last_rank, None),
    "a file that says nothing": (junk, None),
    "the model in the file, the rest by a broadcast": (model_in_the_file, None),
    "no scaler in the file, a broadcast": (scaler_not_in_the_file, None),
    "objects, not states": (objects, None),
    "removes the old file first": (removes_first, None),
    "a log of each rank": (a_log_of_each, None),
    "the model is not loaded": (model_not_loaded, "model not loaded"),
    "the scaler is not loaded": (scaler_not_loaded, "scaler not loaded"),
}
