"""Trains with an average of the weights, evaluates as it goes, and leaves a checkpoint,
a log and a CSV beside itself.
"""

import copy
import csv
import logging
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).resolve().parent
logging.basicConfig(
    filename=HERE / "ema_run.log", level=logging.INFO, format="%(asctime)s %(message)s", force=True
)
log = logging.getLogger("ema")


class Trainer:
    def __init__(self, model, lr=0.05, decay=0.9):
        self.model, self.decay = model, decay
        self.ema = copy.deepcopy(model).requires_grad_(False)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.rows = []

    @torch.no_grad()
    def average(self):
        for kept, p in zip(self.ema.parameters(), self.model.parameters(), strict=True):
            kept.lerp_(p, 1 - self.decay)

    def fit(self, batches, held_out):
        for step, (x, y) in enumerate(batches):
            self.model.train()
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.average()
            if step % 10 == 9:
                self.evaluate(step, loss.item(), *held_out)

    def evaluate(self, step, train_loss, x, y):
        self.model.eval()
        with torch.no_grad():
            now = nn.functional.cross_entropy(self.model(x), y).item()
            averaged = nn.functional.cross_entropy(self.ema(x), y).item()
        self.rows.append({"step": step, "train": train_loss, "now": now, "averaged": averaged})
        log.info("step %d train %.4f now %.4f averaged %.4f", step, train_loss, now, averaged)
        torch.save(
            {"model": self.model.state_dict(), "ema": self.ema.state_dict(), "step": step},
            HERE / "ema_last.pt",
        )


def main():
    torch.manual_seed(4)
    x = torch.randn(900, 10)
    y = (x[:, :3].pow(2).sum(1) > 2.4).long()
    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Dropout(0.1), nn.Linear(40, 2))
    trainer = Trainer(model)
    picks = (torch.randint(800, (50,)) for _ in range(60))
    trainer.fit(((x[i], y[i]) for i in picks), (x[800:], y[800:]))
    with open(HERE / "ema_losses.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, trainer.rows[0].keys())
        writer.writeheader()
        writer.writerows(trainer.rows)
    print("last:", trainer.rows[-1])


if __name__ == "__main__":
    main()
