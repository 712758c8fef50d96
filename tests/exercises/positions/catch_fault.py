"""Answers to `catch_fault`, written without a look at its table of mistakes."""

import numpy as np
import torch

BF16 = torch.bfloat16


def gram(rope, dtype=BF16, autocast=True, far=7000, room=1.0):
    x, positions = torch.ones(200, 32, dtype=dtype), torch.arange(200)
    with torch.autocast("cpu", dtype=BF16, enabled=autocast):
        a, b = (rope(x, start + positions).double() for start in (0, far))
    torch.testing.assert_close(a @ a.T, b @ b.T, atol=room, rtol=0)


def with_itself_and_neighbours(rope):
    x, positions = torch.randn(64, 48), torch.randint(3000, 60_000, (64,))
    plain = rope(x, positions).numpy()
    for dtype in (torch.half, BF16):
        with torch.autocast("cpu", dtype=BF16):
            low, again = rope(x.to(dtype), positions), rope(x, positions)
        np.testing.assert_allclose([low.float().numpy(), again.numpy()], [plain, plain], atol=0.1)
    assert not torch.equal(rope(x[:1], torch.tensor([4000])), rope(x[:1], torch.tensor([4001])))


def turns_add_up(rope):
    far, by_5 = torch.arange(3001, 4000), torch.full((999,), 5)
    for dtype in (torch.float32, BF16):
        x = torch.linspace(-1, 1, 64).expand(999, 64).to(dtype)
        with torch.autocast("cpu", dtype=BF16):
            np.testing.assert_array_less(
                (rope(rope(x, far), by_5) - rope(x, far + 5)).abs().max().item(), 0.1
            )


RIGHT = {
    "Gram matrices": gram,
    "with itself": with_itself_and_neighbours,
    "turns add up": turns_add_up,
}


def keeps_the_norm(rope):
    x = torch.linspace(-1, 1, 256).view(4, 64)
    norms = rope(x, 100_000 + torch.arange(4)).norm(dim=-1)
    torch.testing.assert_close(norms, x.norm(dim=-1), atol=1e-3, rtol=0)


def with_and_without_autocast(rope):
    x, positions = torch.ones(8, 64), torch.arange(4000, 4008)
    with torch.autocast("cpu", dtype=BF16):
        under = rope(x, positions)
    torch.testing.assert_close(under, rope(x, positions), atol=1e-3, rtol=0)


def with_a_table(rope):
    x, positions = torch.ones(2, 8), torch.tensor([0, 1])
    torch.testing.assert_close(rope(x, positions), x)


SIBLINGS = {
    "a table": (with_a_table, "fails them all", "close! M"),
    "the norm": (keeps_the_norm, None, "the same positions"),
    "with and without autocast": (with_and_without_autocast, None, "Do not test"),
}
WRONG = {
    "no autocast": (lambda rope: gram(rope, autocast=False), "no autocast"),
    "strict": (lambda rope: gram(rope, room=1e-7), "too strict"),
    "returns": (
        lambda rope: bool(rope(torch.ones(2, 64), torch.tensor([0, 4000])).isfinite().all()),
        None,
    ),
}
