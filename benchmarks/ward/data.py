"""Tiny data in place of what a public script downloads or prepares;
each is named in the lists of cases.
"""

from __future__ import annotations

import json
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
        lines = (
            " ".join(f"w{number}" for number in random.integers(0, 50, 20)) for _ in range(400)
        )
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")


def names(folder: Path) -> None:
    """`names.txt` of makemore: a thousand random names of 3 to 8 letters."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    lines = ("".join(random.choice(letters, random.integers(3, 9))) for _ in range(1000))
    (folder / "names.txt").write_text("\n".join(lines), "utf-8")


def citations(folder: Path) -> None:
    """`cora.content` and `cora.cites` of gcn and gat:
    2,708 papers in seven classes with 40 words, and 6,000 citations.
    """
    random = np.random.default_rng(0)
    classes = [
        "Case_Based",
        "Genetic_Algorithms",
        "Neural_Networks",
        "Probabilistic_Methods",
        "Reinforcement_Learning",
        "Rule_Learning",
        "Theory",
    ]
    papers = (
        "\t".join(map(str, (n, *random.integers(0, 2, 40), classes[n % 7]))) for n in range(2708)
    )
    (folder / "cora.content").write_text("\n".join(papers) + "\n", "utf-8")
    cites = ("\t".join(map(str, random.integers(0, 2708, 2))) for _ in range(6000))
    (folder / "cora.cites").write_text("\n".join(cites) + "\n", "utf-8")


def pictures(folder: Path) -> None:
    """`imgs` and `masks` of Pytorch-UNet: sixteen random pictures of 64 by 64,
    and masks of two classes.
    """
    from PIL import Image

    random = np.random.default_rng(0)
    for kind, shape, most in (("imgs", (64, 64, 3), 256), ("masks", (64, 64), 2)):
        (folder / kind).mkdir(exist_ok=True)
        for number in range(16):
            ending = "png" if kind == "imgs" else "gif"
            pixels = Image.fromarray(random.integers(0, most, shape).astype(np.uint8))
            pixels.save(folder / kind / f"{number}{'_mask' * (kind == 'masks')}.{ending}")


def photos(folder: Path) -> None:
    """`train` and `test` of super_resolution: twenty random pictures of 64 by 64."""
    _save_pictures({"train": 20, "test": 4}, folder)


def pairs(folder: Path) -> None:
    """`train/A`, `train/B` and the same of `test` of cyclegan: six random pictures each."""
    _save_pictures({f"{part}/{side}": 6 for part in ("train", "test") for side in "AB"}, folder)


def _save_pictures(counts: dict[str, int], folder: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = random.integers(0, 256, (64, 64, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def waves(folder: Path) -> None:
    """`traindata.pt` of time_sequence_prediction: five sines of sixteen points."""
    import torch

    starts = np.random.default_rng(0).integers(-80, 80, (5, 1))
    torch.save(np.sin((np.arange(16) + starts) / 20), folder / "traindata.pt")


def letters(folder: Path) -> None:
    """`input.txt` of chargpt: 4,000 random letters, with those of the prompt that it continues."""
    random = np.random.default_rng(0)
    text = "".join(random.choice(list("abcdefghij \n"), 4000))
    (folder / "input.txt").write_text("O God, O God!\n" + text, "utf-8")


def chats(folder: Path) -> None:
    """`chats.jsonl` of minimind: sixty lines, each with a text of 5 to 25 words and a question with
    its answer.
    """
    random = np.random.default_rng(0)
    lines = []
    for _ in range(60):
        text = " ".join(f"w{number}" for number in random.integers(0, 50, random.integers(5, 26)))
        turns = [{"role": role, "content": text} for role in ("user", "assistant")]
        lines.append(json.dumps({"text": text, "conversations": turns}))
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def style(folder: Path) -> None:
    """`mosaic.jpg` of fast_neural_style: one random picture."""
    _save_pictures({".": 1}, folder)
    (folder / "0.png").rename(folder / "mosaic.jpg")


def pets(folder: Path) -> None:
    """Forty random pictures, `cat_1.jpg` or `dog_2.jpg`, of accelerate's examples."""
    _save_pictures({".": 40}, folder)
    for number in range(40):
        (folder / f"{number}.png").rename(folder / f"{'cat' if number % 2 else 'dog'}_{number}.jpg")


def readme_script(folder: Path) -> None:
    """`example.py`: the second block of Python in the README."""
    blocks = (folder / "README.md").read_text("utf-8").split("```python\n")
    (folder / "example.py").write_text(blocks[2].split("```")[0], "utf-8")


def byte_tokens(folder: Path) -> None:
    """`tiny_shakespeare_val.bin` of llm.c: 5,000 random tokens of 32 bits below 256."""
    random = np.random.default_rng(0)
    random.integers(0, 256, 5_000).astype(np.int32).tofile(folder / "tiny_shakespeare_val.bin")


def speech(folder: Path) -> None:
    """What vits reads: 24 noises of 4,096 samples, lists of them, and a small net's sizes."""
    import json

    from scipy.io import wavfile

    random = np.random.default_rng(0)
    lines = []
    for number in range(24):
        noise = random.normal(0, 3000, 4096).astype(np.int16)
        wavfile.write(folder / f"{number}.wav", 22050, noise)
        lines.append(f"speech/{number}.wav|{''.join(random.choice(list('abcdefgh '), 12))}")
    for part in ("train", "val"):
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    sizes = {
        "train": {
            "log_interval": 1000,
            "eval_interval": 1000,
            "seed": 1,
            "epochs": 4,
            "learning_rate": 2e-4,
            "betas": [0.8, 0.99],
            "eps": 1e-9,
            "batch_size": 4,
            "fp16_run": True,
            "lr_decay": 0.999,
            "segment_size": 1024,
            "c_mel": 45,
            "c_kl": 1.0,
        },
        "data": {
            "training_files": "speech/train.txt",
            "validation_files": "speech/val.txt",
            "text_cleaners": [],
            "max_wav_value": 32768.0,
            "sampling_rate": 22050,
            "filter_length": 256,
            "hop_length": 64,
            "win_length": 256,
            "n_mel_channels": 20,
            "mel_fmin": 0.0,
            "mel_fmax": None,
            "add_blank": True,
            "n_speakers": 0,
            "cleaned_text": True,
        },
        "model": {
            "inter_channels": 16,
            "hidden_channels": 16,
            "filter_channels": 32,
            "n_heads": 2,
            "n_layers": 1,
            "kernel_size": 3,
            "p_dropout": 0.1,
            "resblock": "1",
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1, 3, 5]],
            "upsample_rates": [8, 8],
            "upsample_initial_channel": 32,
            "upsample_kernel_sizes": [16, 16],
            "n_layers_q": 1,
            "use_spectral_norm": False,
        },
    }
    (folder / "small.json").write_text(json.dumps(sizes), "utf-8")
