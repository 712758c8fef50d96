"""Tiny data in place of what a public script downloads or prepares; each is named in the lists of cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def tokens(folder: Path) -> None:
    """`train.bin` and `val.bin` of nanoGPT: 20,000 random tokens of 16 bits below 256."""
    random = np.random.default_rng(0)
    for name in ("train", "val"):
        random.integers(0, 256, 20_000).astype(np.uint16).tofile(folder / f"{name}.bin")


def words(folder: Path) -> None:
    """`train.txt`, `valid.txt` and `test.txt` of word_language_model: sentences of fifty words."""
    random = np.random.default_rng(0)
    for name in ("train", "valid", "test"):
        lines = (" ".join(f"w{number}" for number in random.integers(0, 50, 20)) for _ in range(400))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")


def names(folder: Path) -> None:
    """`names.txt` of makemore: a thousand random names of 3 to 8 letters."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    lines = ("".join(random.choice(letters, random.integers(3, 9))) for _ in range(1000))
    (folder / "names.txt").write_text("\n".join(lines), "utf-8")


def citations(folder: Path) -> None:
    """`cora.content` and `cora.cites` of gcn and gat: 2,708 papers in seven classes with 40 words, and 6,000 citations."""
    random = np.random.default_rng(0)
    classes = [
        "Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods", "Reinforcement_Learning",
        "Rule_Learning", "Theory",
    ]  # fmt: skip
    papers = ("\t".join(map(str, (n, *random.integers(0, 2, 40), classes[n % 7]))) for n in range(2708))
    (folder / "cora.content").write_text("\n".join(papers) + "\n", "utf-8")
    cites = ("\t".join(map(str, random.integers(0, 2708, 2))) for _ in range(6000))
    (folder / "cora.cites").write_text("\n".join(cites) + "\n", "utf-8")


def pictures(folder: Path) -> None:
    """`imgs` and `masks` of Pytorch-UNet: sixteen random pictures of 64 by 64, and masks of two classes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for kind, shape, most in (("imgs", (64, 64, 3), 256), ("masks", (64, 64), 2)):
        (folder / kind).mkdir(exist_ok=True)
        for number in range(16):
            ending = "png" if kind == "imgs" else "gif"
            pixels = Image.fromarray(random.integers(0, most, shape).astype(np.uint8))
            pixels.save(folder / kind / f"{number}{'_mask' * (kind == 'masks')}.{ending}")
