# fault: stepped-twice
"""A trainer with callbacks, in the manner of the well-known libraries."""

import torch
from torch import nn


class Callback:
    def on_batch_end(self, trainer, loss): ...

    def on_fit_end(self, trainer): ...


class Progress(Callback):
    def __init__(self, every=10):
        self.every = every

    def on_batch_end(self, trainer, loss):
        if trainer.step % self.every == 0:
            print(f"step {trainer.step}: loss {loss:.4f}")


class Optimization(Callback):
    """Steps every `every` batches."""

    def __init__(self, every=1):
        self.every = every

    def on_batch_end(self, trainer, loss):
        if (trainer.step + 1) % self.every == 0:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()


class Trainer:
    def __init__(self, model, optimizer, callbacks=()):
        self.model, self.optimizer = model, optimizer
        self.callbacks = [*callbacks, Optimization()]
        self.step = 0

    def fit(self, batches):
        for x, y in batches:
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            for callback in self.callbacks:
                callback.on_batch_end(self, loss.item())
            self.step += 1
        for callback in self.callbacks:
            callback.on_fit_end(self)


def batches(n):
    rule = torch.randn(8, 3)
    for _ in range(n):
        x = torch.randn(48, 8)
        yield x, (x @ rule).argmax(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    Trainer(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), [Progress()]).fit(batches(60))
