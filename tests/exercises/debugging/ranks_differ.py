"""Answers to `ranks_differ`, written without a look at its table of mistakes."""

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def all_of_it(net, batches, checkpoint):
    cause("ranks-with-different-scales")
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, checkpoint)
    checkpoint = everybody[0]
    net.load_state_dict(checkpoint["model"])
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(checkpoint["scaler"])
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scales = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(x)
        scaler.scale(F.cross_entropy(output.float(), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return torch.tensor(scales)


def by_tensors(net, batches, checkpoint):
    cause("ranks-with-different-scales")
    numbers = torch.zeros(5, dtype=torch.float64)
    if dist.get_rank() == 0:
        net.load_state_dict(checkpoint["model"])
        state = checkpoint["scaler"]
        keys = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        numbers = torch.tensor([state[key] for key in keys], dtype=torch.float64)
    dist.broadcast(numbers, src=0)
    scale, growth, backoff, interval, tracker = numbers.tolist()
    scaler = torch.amp.GradScaler("cpu", scale, growth, backoff, int(interval))
    scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": int(tracker)})
    for parameter in net.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model, scales = DDP(net), ()
    for x, y in batches:
        with torch.autocast("cpu", torch.half):
            loss = F.cross_entropy(model(x), y)
        net.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales += (scaler.get_scale(),)
    return scales


NAMED = 'cause("ranks-with-different-scales")'
GATHER = "dist.all_gather_object(everybody, checkpoint)"
LOAD, UPDATE = 'scaler.load_state_dict(checkpoint["scaler"])', "scaler.update()"
TRACKER = 'scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": int(tracker)})'
RIGHT = {
    "gathers the checkpoint": all_of_it,
    "sends numbers": by_tensors,
    "names the cause on rank 0": edited(
        by_tensors, {NAMED: f"if dist.get_rank() == 0:\n    {NAMED}"}
    ),
    "nll_loss of log_softmax": edited(
        by_tensors,
        {
            "loss = F.cross_entropy(model(x), y)": "loss = F.nll_loss(F.log_softmax(model(x), "
            "dim=-1), y)"
        },
    ),
    "broadcasts the checkpoint": edited(
        all_of_it,
        {GATHER: "everybody[0] = checkpoint\ndist.broadcast_object_list(everybody, src=0)"},
    ),
}
AFTER = "if dist.get_rank() == 0:\n    net.load_state_dict(checkpoint['model'])"
WRONG = {
    "loads after wrapping": (
        edited(
            all_of_it,
            {
                'net.load_state_dict(checkpoint["model"])': "pass",
                "model = DDP(net)": f"model = DDP(net)\n{AFTER}",
            },
        ),
        "loads after wrapping",
    ),
    "reads the scale too early": (
        edited(
            all_of_it,
            {
                UPDATE: f"scales.append(scaler.get_scale())\n{UPDATE}",
                "scales.append(scaler.get_scale())": "pass",
            },
        ),
        "scales before the update",
    ),
    "another cause": (edited(all_of_it, {NAMED: 'cause("clones-disagree")'}), None),
    "no cause": (edited(by_tensors, {NAMED: "pass"}), None),
    "an unknown cause": (edited(by_tensors, {NAMED: 'cause("bad luck")'}), None),
    "without the growth tracker": (edited(by_tensors, {TRACKER: "pass"}), None),
    "no cause, and no growth tracker": (edited(by_tensors, {TRACKER: "pass", NAMED: "pass"}), None),
    "a new scaler": (edited(all_of_it, {LOAD: "pass"}), "starts over"),
    "takes None for a checkpoint": (edited(all_of_it, {GATHER: "everybody[0] = checkpoint"}), None),
    "without DDP": (
        edited(all_of_it, {"model = DDP(net)": "model = net"}),
        "without DDP, from the same weights",
    ),
    "sends numbers, without DDP": (
        edited(by_tensors, {"model, scales = DDP(net), ()": "model, scales = net, ()"}),
        "without DDP, from the same weights",
    ),
    "never clears": (edited(all_of_it, {"optimizer.zero_grad()": "pass"}), "never clears"),
    "returns no scales": (edited(all_of_it, {"return torch.tensor(scales)": "pass"}), None),
    "agrees after each update": (
        edited(
            all_of_it,
            {
                LOAD: f"if dist.get_rank() == 0:\n    {LOAD}",
                UPDATE: f"{UPDATE}\nstate = "
                f"[scaler.state_dict()]\ndist.broadcast_object_list(state)\nscaler.load_state_dict(state[0])",
            },
        ),
        None,
    ),
}
