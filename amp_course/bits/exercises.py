"""The five exercises of chapter 01; `ALL` lists them in order. The code that judges is in `judges/`."""

from __future__ import annotations

from amp_course.bits.judges import cutting, decoding, encoding, limits, spacing
from amp_course.checking import Exercise

decode_fp16 = Exercise(
    chapter="bits",
    name="decode_fp16",
    number=1,
    title="Read a pattern",
    task="Write `decode`: the value of a 16-bit fp16 pattern, by arithmetic of your own on its bits. It takes an int "
    "from 0x0000 to 0xffff and returns a Python float. The check asks for all 65,536.",
    difficulty=2,
    importance=4,
    minutes=12,
    lines=10,
    hints=(
        "Three fields, then three cases of the exponent field: all zeros, all ones, and everything between.",
        "`sign = pattern >> 15`, `exponent = (pattern >> 10) & 0x1F`, `significand = pattern & 0x3FF`. Between the "
        "extremes the value is 2^(exponent − 15) · (1 + significand/1024).",
        "Field 0: 2^−14 · significand/1024, with no hidden 1. Field 31: inf if the significand is 0, else NaN. "
        "`math.ldexp(x, n)` is x · 2^n; `math.copysign(size, -1.0)` gives a zero its sign too.",
    ),
    judge=decoding.judge,
    why="Subnormals, −0, inf and NaN are patterns like any other, and training meets all of them.",
    alternative='`struct.unpack("<e", pattern.to_bytes(2, "little"))[0]`, or `np.uint16(pattern).view(np.float16)`: the '
    "machine's own reading of the same bits.",
)

encode_fp16 = Exercise(
    chapter="bits",
    name="encode_fp16",
    number=2,
    title="Write a pattern",
    task="Write `encode`: the fp16 pattern nearest to a Python float, ties to even, as an int from 0x0000 to 0xffff. "
    "Round once, from the float as it is.",
    difficulty=4,
    importance=4,
    minutes=20,
    lines=12,
    hints=(
        "Settle NaN, the sign, inf and zero first. For the rest, which power of two does the number lie above, and "
        "how far apart are the numbers of fp16 there?",
        "`math.frexp(x)` gives a fraction from 0.5 to 1 and an n with x = fraction · 2^n, so the exponent of 1.m is n − 1, "
        "and never below −14. Count `steps = round(math.ldexp(x, 10 - exponent))`: Python's `round` takes ties to even.",
        "`steps` runs from 1024 to 2048 for normal numbers, hidden 1 included, and below 1024 for subnormals. "
        "`((exponent + 14) << 10) + steps` is the pattern in both cases, and the carry at 2048 falls where it "
        "should. From 0x7C00 on it is inf: `min(…, 0x7C00)`.",
    ),
    judge=encoding.judge,
    why="Every cast to half precision rounds like this; what it does with ties, tiny and huge numbers decides what "
    "training loses.",
    alternative="test the largest number's half step first (`abs(x) >= 65520`), and let `struct.pack('<e', x)` do "
    "the rest: it rounds to even too.",
)

find_ulp = Exercise(
    chapter="bits",
    name="find_ulp",
    number=3,
    title="How far to the next number?",
    task="Write `ulp(x, fmt)`: the gap between the numbers of a format at x, for any format and any |x| up to its "
    "largest. If x is a number of the format, take the gap above it.",
    difficulty=3,
    importance=5,
    minutes=10,
    lines=4,
    hints=(
        "At 1 the gap is eps. What happens to it at 2, at 4, at ½? And where does the halving stop?",
        "Find the exponent of the power of two at or below |x|. `math.frexp` splits a float without rounding, where "
        "`math.floor(math.log2(x))` is one too high just below a power of two.",
        "`exponent = math.frexp(abs(x))[1] - 1`, but never below `fmt.min_exponent`; 0 has that exponent too. The gap "
        "is 2^(exponent − fmt.significand_bits).",
    ),
    judge=spacing.judge,
    why="Add less than half of this gap to a number, and it stays where it was: chapter 02 is built on that.",
    alternative="`max(math.frexp(x)[1] - 1, fmt.min_exponent)` of |x|, and a case for 0. For float64 Python has "
    "`math.ulp`, and for its own types, float16 among them, NumPy has `np.spacing`.",
)

derive_limits = Exercise(
    chapter="bits",
    name="derive_limits",
    number=4,
    title="A format's limits from its widths",
    task="Write `limits`: from the exponent bits, the significand bits and the rule for special patterns alone, return a dict "
    "with `eps`, `smallest_normal`, `smallest_subnormal` and `max`. The bias is IEEE's, 2^(exponent bits − 1) − 1.",
    difficulty=3,
    importance=3,
    minutes=15,
    lines=14,
    hints=(
        "For three of the four, the rule does not matter. For `max`, ask which pattern is the last one that is a "
        "number.",
        "Exponent field 1 is the smallest normal number's, so its exponent is 1 − bias; the smallest subnormal lies "
        "as many halvings below it as there are significand bits.",
        "`max`: under “ieee” the last field is 2^E − 2 and the significand all ones. Under the other two it is 2^E − "
        "1, and the significand all ones under “finite” and one less under “fn”. Then it is 2^(field − bias) · (1 + "
        "significand/2^M).",
    ),
    judge=limits.judge,
    why="Two widths and a rule are all there is to a format: if you can derive fp8's limits, you need no table for the "
    "next format.",
    alternative="the pattern of the largest number, put through your `decode` with the widths as arguments, gives "
    "`max` with no formula of its own.",
)

round_bf16 = Exercise(
    chapter="bits",
    name="round_bf16",
    number=5,
    title="bf16: cut or round?",
    task="bf16 is the upper half of fp32, so cutting off 16 bits converts one to the other, nearly. Find a number "
    "`differs` where cutting and rounding to nearest disagree; then write `to_bf16`, which works on the bits and "
    "gives what torch's cast gives, NaN included.",
    difficulty=4,
    importance=3,
    minutes=15,
    lines=5,
    hints=(
        "Cutting always goes towards zero. Where does the nearest value lie on the other side?",
        "Add before you cut: what has to be added to the bits so that more than half a step carries into the upper "
        "16, and less does not? A tie then needs one more where the upper half is odd.",
        "`bits + 0x7FFF + ((bits >> 16) & 1)`, then shift as before. On overflow the carry already gives inf; it "
        "damages NaN: `torch.where(x.isnan(), torch.nan, rounded)`.",
    ),
    judge=cutting.judge,
    why="This is the conversion in PyTorch's own source, and cutting instead pulls every number towards zero, by "
    "half a step on average.",
    alternative="in NumPy `x.view(np.uint32)` has no sign to shift along: compare the lower half with 0x8000, and "
    "add 1 to the upper where it is more, or equal and the upper odd.",
    takes="value",
)

ALL = (decode_fp16, encode_fp16, find_ulp, derive_limits, round_bf16)
