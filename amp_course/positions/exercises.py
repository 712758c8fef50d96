"""The five exercises of chapter 03; `ALL` lists them in order. The code that judges is in `judges/`."""

from __future__ import annotations

from amp_course.checking import Exercise
from amp_course.positions.judges import bias, counting, testing, turning

find_collision = Exercise(
    chapter="positions",
    name="find_collision",
    number=1,
    title="Find the first collision",
    task="Write `first_collision`: the smallest integer position that shares its value with an earlier one, in a format with so "
    "many stored significand bits. The format's range is no limit here.",
    difficulty=1,
    importance=4,
    minutes=5,
    lines=1,
    hints=(
        "Up to which integer are there enough bits for every one? bf16 stores 7 and counts to 256.",
        "A normal number has a hidden 1 in front, so M stored bits make M + 1: they write every integer below "
        "2^(M + 1), and 2^(M + 1) is a power of two.",
        "The integer after that lies halfway between two numbers, and the tie goes to the even one, 2^(M + 1).",
    ),
    judge=counting.judge_collision,
    why="One number tells how long a context may be before position ids in this format are wrong: 256 in bf16, 2,048 in fp16.",
    alternative="`int(2 / torch.finfo(dtype).eps) + 1` says the same for a torch dtype: eps is the spacing at 1, so the spacing "
    "is 2 from 2/eps on.",
)

count_ids = Exercise(
    chapter="positions",
    name="count_ids",
    number=2,
    title="Count the distinct ids",
    task="Write `distinct_ids`: how many different values the positions 0 … n−1 have in a format. Build no tensor and loop over "
    "no tokens: the check asks for n = 2^40. All positions that overflow to inf share one id, which counts.",
    difficulty=4,
    importance=3,
    minutes=20,
    lines=10,
    hints=(
        "How many values of bf16 lie from 256 up to, but without, 512? And from 512 to 1,024? Look at the spacing.",
        "With p = `fmt.significand_bits` + 1 bits, every integer up to 2^p has an id of its own. Each later binade, from a power "
        "of two to the next, holds 2^(p−1) values. Which value does the last position, n − 1, round to?",
        "The spacing at n − 1 is `step = 2 ** ((n - 1).bit_length() - p)`, and `round((n - 1) / step)` counts steps, ties to "
        "even as a cast does; with Fraction there is no rounding before. Add 2^(p−1) values for each binade before. Past "
        "`fmt.max`, half a step further, it is inf: one more than all values up to `fmt.max`.",
    ),
    judge=counting.judge_count,
    why="The count grows with the logarithm of the length: a bf16 id has 1,409 values for 131,072 tokens.",
    alternative="patterns of positive numbers are in the order of their values, so `encode(n - 1, fmt) - encode(2**p, fmt)` "
    "counts the values past 2^p, inf included.",
    seconds=30.0,
)

repair_rope = Exercise(
    chapter="positions",
    name="repair_rope",
    number=3,
    title="Repair a RoPE",
    task="The given RoPE is right for float32 outside of autocast. Make it right for float32, bf16 and fp16 x, and under "
    "bf16 autocast for float32 and bf16 x, at any position; the result has the dtype of x.",
    difficulty=3,
    importance=5,
    minutes=10,
    lines=6,
    hints=(
        "Go through its lines and ask of each: in which dtype does this run if x is bf16? And under autocast?",
        "Three things are wrong: the frequencies' dtype, the positions' dtype, and `@`, which autocast runs in bf16 whatever "
        "its inputs are.",
        "`torch.arange(..., dtype=torch.float32)`, `positions.float()[:, None] * frequencies`, and `.to(x.dtype)` on the "
        "result.",
    ),
    judge=turning.judge,
    why="Each of the three was shipped in a library that many models were trained with; float32 until the last line cures all.",
    alternative="`with torch.autocast(x.device.type, enabled=False):` around a matmul of float32 tensors, as Hugging Face's "
    "models do.",
)

exact_alibi = Exercise(
    chapter="positions",
    name="exact_alibi",
    number=4,
    title="ALiBi for long contexts",
    task="Write `alibi`: the bias −slope · (query − key), of shape (heads, queries, keys), exact in float32 for positions up to "
    "a million, under autocast too, and for slopes that come in bf16. Keys after their query are masked elsewhere: your values "
    "there do not matter.",
    difficulty=2,
    importance=3,
    minutes=8,
    lines=2,
    hints=(
        "Which step is exact in integers? Take that one before anything becomes a float.",
        "`queries[:, None] - keys[None, :]` is the distance, an integer. One product is left, and it has to be elementwise.",
        "`-slopes.float()[:, None, None] * distance`: a product of float32 and an integer tensor is float32.",
    ),
    judge=bias.judge,
    why="A bias grows with distance, so unlike cos and sin it cannot be cast last: past 256 steps neighbours share it in bf16.",
    alternative="`torch.mul(-slopes.float().view(-1, 1, 1), (queries.view(-1, 1) - keys).float())`: the distance is exact in "
    "float32 up to 2^24.",
)

catch_fault = Exercise(
    chapter="positions",
    name="catch_fault",
    number=5,
    title="Write the test that would have caught it",
    task="Write `test_rope(rope)`: it raises AssertionError for a RoPE that loses its place, and returns nothing for a right "
    "one. It is run against two right and three broken ones; you are not told the layout of their channels, nor their base.",
    difficulty=4,
    importance=5,
    minutes=15,
    lines=12,
    hints=(
        "What does RoPE promise, whatever its layout and base? That holds between two numbers, not between two tensors.",
        "The score q · k of a query and a key that are 3 apart is the same everywhere. Where, in which dtype and in which "
        "region do the three faults show?",
        "For x in float32 and bf16, with autocast off and on: `scores = (rope(q, starts + 3) * rope(k, starts)).float().sum(-1)` "
        "for starts from 0 to some thousands, q and k expanded to (len(starts), d). `assert` that they differ by less than a "
        "fiftieth of |q| · |k|.",
    ),
    judge=testing.judge,
    why="The faults passed every test with short inputs, float32 and no autocast: a test has to go where training goes.",
    alternative="compare with a float64 reference of the same layout and base, `torch.testing.assert_close(…, atol=0.05, "
    "rtol=0)`; it also sees wrong frequencies, which keep scores flat.",
)

ALL = (find_collision, count_ids, repair_rope, exact_alibi, catch_fault)
