"""Answers that readers may give, right and wrong; for each wrong one, words that its own diagnosis must hold."""

import math
import struct
from fractions import Fraction

import numpy as np
import torch

from amp_course.bits.formats import FloatFormat


# --- 1. decode_fp16 ---------------------------------------------------------------------------------------
def d_right(pattern):
    sign, exponent, significand = pattern >> 15, (pattern >> 10) & 0x1F, pattern & 0x3FF
    if exponent == 31:
        size = math.nan if significand else math.inf
    elif exponent == 0:
        size = math.ldexp(significand, -24)
    else:
        size = math.ldexp(1024 + significand, exponent - 25)
    return -size if sign else size


def d_right_digits(pattern):
    bits = f"{pattern:016b}"
    sign = (-1.0) ** int(bits[0])
    field, significand = int(bits[1:6], 2), sum(int(b) / 2**n for n, b in enumerate(bits[6:], 1))
    if field == 0b11111:
        return np.float32(math.nan) if "1" in bits[6:] else sign * math.inf
    return sign * 2.0 ** (max(field, 1) - 15) * ((field > 0) + significand)


def d_right_tensor(pattern):
    return torch.tensor(pattern, dtype=torch.uint16).view(torch.float16)


def d_right_struct(pattern):
    return struct.unpack("<e", pattern.to_bytes(2, "little"))[0]


def decoder(
    bias=15, hidden=1.0, low=-14, low_hidden=0.0, steps=1024, mask=0x1F, top=True, signed=True, zero_signed=True
):
    """Make a decoder with one mistake in it."""

    def decode(pattern):
        sign, exponent, significand = pattern >> 15, (pattern >> 10) & mask, pattern & 0x3FF
        if top and exponent & 0x1F == 31:
            size = math.nan if significand else math.inf
        elif exponent == 0:
            size = 2.0**low * (low_hidden + significand / 1024)
        else:
            size = 2.0 ** (exponent - bias) * (hidden + significand / steps)
        if size == 0 and not zero_signed:
            return size
        return -size if sign and signed else size

    return decode


def d_top_is_inf(pattern):
    return math.copysign(math.inf, d_right(pattern)) if (pattern >> 10) & 31 == 31 else d_right(pattern)


def d_top_is_nan(pattern):
    return math.nan if (pattern >> 10) & 31 == 31 else d_right(pattern)


def d_swapped(pattern):
    value = d_right(pattern)
    if (pattern >> 10) & 31 == 31:
        return math.inf if value != value else math.nan
    return value


def d_inf_alone(pattern):
    return decoder(top=False)(pattern) if pattern & 0x3FF else d_right(pattern)


def d_flush(pattern):
    return d_right(pattern) if pattern & 0x7C00 else (-0.0 if pattern >> 15 else 0.0)


def d_significand_dropped(pattern):
    return 2.0 ** (((pattern >> 10) & 31) - 15)


def d_undivided(pattern):
    return (1024 + (pattern & 0x3FF)) * 2.0 ** (((pattern >> 10) & 31) - 15)


# --- 2. encode_fp16 ---------------------------------------------------------------------------------------
def encoder(
    rounding=round,
    top="inf",
    flush=False,
    zero=lambda v: math.copysign(1.0, v) < 0,
    bias_off=0,
    join=lambda field, steps: (field << 10) + steps,
    nan=0x7E00,
    low=-14,
    early=None,
):
    """Make an encoder, right as it is; each argument puts one mistake into it."""

    def encode(value):
        if value != value:
            return nan
        sign = 0x8000 if zero(value) else 0
        size = abs(value)
        if size == 0:
            return sign
        if math.isinf(size) or (early is not None and size > early):
            return sign | 0x7C00
        if flush and size < 2.0**-14:
            return sign
        exponent = max(math.frexp(size)[1] - 1, low)
        steps = rounding(math.ldexp(size, 10 - exponent))
        pattern = join(exponent + 14 + bias_off, steps)
        if pattern >= 0x7C00:
            pattern = {"inf": 0x7C00, "clamp": 0x7BFF, "nan": 0x7E00}[top]
        return sign | pattern

    return encode


def e_right_numpy(value):
    with np.errstate(over="ignore"):
        return np.float16(value).view(np.uint16)


def e_right_struct(value):
    try:
        return int.from_bytes(struct.pack("<e", value), "little")
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


GRID = sorted((float(np.uint16(p).view(np.float16)), p) for p in range(0x7C00))


def e_right_search(value):
    """Search all patterns, by halving: slow, and nothing to get wrong."""
    sign = 0x8000 if math.copysign(1, value) < 0 else 0
    if value != value:
        return torch.tensor(0x7FFF)
    x = abs(value)
    if x >= 65520:
        return sign + 0x7C00
    low, high = 0, 0x7C00
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if GRID[middle][0] <= x else (low, middle)
    a = Fraction(GRID[low][0])
    b = Fraction(GRID[high][0]) if high < 0x7C00 else Fraction(65536)
    distance = (Fraction(x) - a) - (b - Fraction(x))
    return sign + (low if distance < 0 or (distance == 0 and low % 2 == 0) else high)


def e_signed(value):
    pattern = encoder()(value)
    return pattern - 0x10000 if pattern & 0x8000 else pattern


def e_by_fp32(value):
    with np.errstate(over="ignore"):
        return int(torch.tensor(value, dtype=torch.float32).half().view(torch.int16)) & 0xFFFF


def e_half_up(x):
    return math.floor(x + 0.5)


def e_half_down(x):
    return math.ceil(x - 0.5)


def e_masked(field, steps):
    return (field + 1) << 10 | (steps & 0x3FF) if steps >= 1024 else steps


def e_no_special_case(value):
    sign = 0x8000 if value < 0 else 0
    significand, exponent = math.frexp(abs(value))
    return sign | ((exponent + 14) << 10) + round(significand * 2048) - 1024


def e_flooring(value):
    """Rounds towards −∞: cuts positive numbers, and grows negative ones."""
    return encoder(rounding=math.floor)(value) if value > 0 else encoder(rounding=math.ceil)(value)


def e_truncated_below(value):
    return encoder(rounding=math.floor)(value) if 0 < abs(value) < 2**-14 else encoder()(value)


# --- 3. find_ulp ------------------------------------------------------------------------------------------
def u_right(x, fmt):
    if x == 0:
        return fmt.smallest_subnormal
    exponent = max(math.frexp(abs(x))[1] - 1, fmt.min_exponent)
    return math.ldexp(1.0, exponent - fmt.significand_bits)


def u_right_loop(x, fmt):
    power = Fraction(fmt.smallest_normal)
    while 2 * power <= abs(x):
        power *= 2
    return power * Fraction(fmt.eps)


def u_right_numpy(x, fmt):
    power = np.ldexp(np.float64(1), np.frexp(np.float64(abs(x)))[1] - 1) if x else 0.0
    return np.maximum(power, fmt.smallest_normal) * fmt.eps


def u_right_clamped(x, fmt):
    """Lifts small numbers to the smallest normal one, and then nothing is special."""
    return math.ldexp(1.0, math.frexp(max(abs(x), fmt.smallest_normal))[1] - 1) * fmt.eps


def u_constant(x, fmt):
    return fmt.eps


def u_proportional(x, fmt):
    return max(fmt.eps * abs(x), fmt.smallest_subnormal)


def u_halving(x, fmt):
    if x == 0:
        return fmt.smallest_subnormal
    return math.ldexp(1.0, math.frexp(abs(x))[1] - 1 - fmt.significand_bits)


def u_log2(x, fmt):
    if x == 0:
        return fmt.smallest_subnormal
    return 2.0 ** (max(math.floor(math.log2(abs(x))), fmt.min_exponent) - fmt.significand_bits)


def u_frexp_off(x, fmt):
    exponent = max(math.frexp(abs(x))[1], fmt.min_exponent)
    return math.ldexp(1.0, exponent - fmt.significand_bits)


def u_no_abs(x, fmt):
    if x == 0:
        return fmt.smallest_subnormal
    return 2.0 ** (max(math.floor(math.log2(x)), fmt.min_exponent) - fmt.significand_bits)


def u_negative_is_small(x, fmt):
    return u_right(max(x, 0), fmt)


def u_signed(x, fmt):
    return math.copysign(u_right(x, fmt), x)


def u_below_the_power(x, fmt):
    exponent = math.frexp(abs(x))[1] - 1
    if abs(x) == math.ldexp(1.0, exponent):
        exponent -= 1
    return math.ldexp(1.0, max(exponent, fmt.min_exponent) - fmt.significand_bits) if x else fmt.smallest_subnormal


def u_fp16_only(x, fmt):
    exponent = max(math.frexp(abs(x))[1] - 1, -14)
    return math.ldexp(1.0, exponent - 10)


def u_field_zero(x, fmt):
    exponent = max(math.frexp(abs(x))[1] - 1, fmt.min_exponent) if abs(x) >= fmt.smallest_normal else -fmt.bias
    return math.ldexp(1.0, exponent - fmt.significand_bits)


def u_zero_forgotten(x, fmt):
    return 2.0 ** (max(math.frexp(math.log2(abs(x)) * 0 + abs(x))[1] - 1, fmt.min_exponent) - fmt.significand_bits)


def u_no_subnormals(x, fmt):
    return u_right(x, fmt) if abs(x) >= fmt.smallest_normal else fmt.smallest_normal


# --- 4. derive_limits -------------------------------------------------------------------------------------
def deriver(bias_off=0, top=None, steps_off=0, low_off=0, low=0, full=None):
    """Make an answer, right as it is; each argument puts one mistake into it."""

    def limits(exponent_bits, significand_bits, specials):
        bias = 2 ** (exponent_bits - 1) - 1 + bias_off
        eps = 2.0 ** (-significand_bits - steps_off)
        rule = top or specials
        field = 2**exponent_bits - (2 if rule == "ieee" else 1)
        significand = 2**significand_bits - (2 if rule == "fn" else 1)
        largest = 1 + significand / 2**significand_bits if full is None else full
        return {
            "max": largest * 2.0 ** (field - bias),
            "smallest_normal": 2.0 ** (1 - bias + low_off),
            "smallest_subnormal": 2.0 ** (1 - bias + low - significand_bits),
            "eps": eps,
        }

    return limits


def k_right_exact(exponent_bits, significand_bits, specials):
    two, bias = Fraction(2), 2 ** (exponent_bits - 1) - 1
    last = 2 ** (exponent_bits + significand_bits) - {"ieee": 2**significand_bits + 1, "fn": 2, "finite": 1}[specials]
    field, significand = divmod(last, 2**significand_bits)
    return {
        "eps": 1 / two**significand_bits,
        "smallest_subnormal": two ** (1 - bias - significand_bits),
        "smallest_normal": two ** (1 - bias),
        "max": (1 + Fraction(significand, 2**significand_bits)) * two ** (field - bias),
    }


def k_right_library(exponent_bits, significand_bits, specials):
    fmt = FloatFormat.of(exponent_bits, significand_bits, specials)
    return {key: getattr(fmt, key) for key in ("max", "eps", "smallest_normal", "smallest_subnormal")}


def k_tuple(*arguments):
    return tuple(deriver()(*arguments).values())


def k_other_keys(*arguments):
    return deriver()(*arguments) | {"min": 1.0}


def k_fp16(exponent_bits, significand_bits, specials):
    info = torch.finfo(torch.float16)
    return {"max": info.max, "eps": info.eps, "smallest_normal": info.tiny, "smallest_subnormal": info.tiny * info.eps}


def k_subnormal_is_normal(*arguments):
    right = deriver()(*arguments)
    return right | {"smallest_subnormal": right["smallest_normal"]}


def k_normal_is_subnormal(*arguments):
    right = deriver()(*arguments)
    return right | {"smallest_normal": right["smallest_subnormal"]}


def k_text(*arguments):
    return {key: str(value) for key, value in deriver()(*arguments).items()}


# --- 5. round_bf16 ----------------------------------------------------------------------------------------
def bits_of(x):
    return x.view(torch.int32)


def upper(bits):
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


def b_right(x):
    bits = bits_of(x)
    rounded = upper(bits + 0x7FFF + ((bits >> 16) & 1))
    return torch.where(x.isnan(), torch.nan, rounded)


def b_right_numpy(x):
    bits = x.numpy().view(np.uint32).astype(np.uint64)
    low, high = bits & 0xFFFF, bits >> 16
    high = high + ((low > 0x8000) | ((low == 0x8000) & (high % 2 == 1)))
    high[np.isnan(x.numpy())] = 0x7FC0
    return torch.from_numpy(np.asarray(high).astype(np.uint16).view(np.int16)).view(torch.bfloat16).reshape(x.shape)


def b_right_cast(x):
    return x.bfloat16()


def b_right_nan_bits(x):
    """Keeps the NaN's upper half and sets its quiet bit, as hardware does."""
    bits = bits_of(x)
    rounded = upper(bits + 0x7FFF + ((bits >> 16) & 1))
    return torch.where(x.isnan(), upper(bits | 0x400000), rounded)


def b_cut(x):
    return upper(bits_of(x))


def b_nan_lost(x):
    bits = bits_of(x)
    return upper(bits + 0x7FFF + ((bits >> 16) & 1))


def b_only_quiet_nan(x):
    bits = bits_of(x)
    rounded = upper(bits + 0x7FFF + ((bits >> 16) & 1))
    return torch.where((bits & 0x7FFFFFFF) > 0x7F80FFFF, torch.nan, rounded)


def b_half_up(x):
    return torch.where(x.isnan(), torch.nan, upper(bits_of(x) + 0x8000))


def b_half_down(x):
    return torch.where(x.isnan(), torch.nan, upper(bits_of(x) + 0x7FFF))


def b_odd(x):
    bits = bits_of(x)
    return torch.where(x.isnan(), torch.nan, upper(bits + 0x7FFF + (~(bits >> 16) & 1)))


def b_always_up(x):
    return torch.where(x.isnan(), torch.nan, upper(bits_of(x) + 0xFFFF))


def b_positive_only(x):
    return torch.where(x > 0, b_right(x), b_cut(x))


def b_sign_lost(x):
    return b_right(x.abs())


def b_clamped(x):
    limit = torch.finfo(torch.bfloat16).max
    return torch.where(x.isnan(), torch.nan, b_right(x.clamp(-limit, limit)))


def b_flushed(x):
    return torch.where(
        x.abs() < torch.finfo(torch.float32).tiny, torch.copysign(torch.zeros_like(x), x).bfloat16(), b_right(x)
    )


def b_patterns(x):
    bits = bits_of(x)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def b_float32(x):
    return b_right(x).float()


def b_in_place(x):
    bits, nan = bits_of(x), x.isnan()
    bits += 0x7FFF + ((bits >> 16) & 1)
    return torch.where(nan, torch.nan, upper(bits))


def b_flat(x):
    return b_right(x.reshape(-1))


def b_none(x):
    b_right(x)


def b_list(x):
    return b_right(x).tolist()


def found(value, function=b_right):
    return {"differs": value, "to_bf16": function}


WRONG = {
    "decode_fp16": {
        "forgets subnormals": (decoder(low=-15, low_hidden=1.0), "0x0001 came out as 1.0009765625 · 2^-15"),
        "hidden 1 at 2^-14": (decoder(low_hidden=1.0), "exponent field 0 has no hidden 1"),
        "subnormals halved": (decoder(low=-15), "share the exponent of field 1"),
        "flushes subnormals": (d_flush, "not every pattern with exponent field 0 is zero"),
        "bias 14": (decoder(bias=14), "as with a bias of 14"),
        "bias 16": (decoder(bias=16), "as with a bias of 16"),
        "fp32's bias": (decoder(bias=127), "as with a bias of 127"),
        "all ones is a number": (decoder(top=False), "0x7c00 came out as 65536, and it is inf"),
        "only inf is special": (d_inf_alone, "so it means NaN"),
        "all ones is inf": (d_top_is_inf, "Only a significand of 0 means inf"),
        "all ones is NaN": (d_top_is_nan, "A significand of 0 means inf"),
        "inf and NaN swapped": (d_swapped, "not the other way round"),
        "ignores −0": (decoder(zero_signed=False), "the sign of zero got lost"),
        "ignores the sign": (decoder(signed=False), "the sign bit, the first of the 16, is 1"),
        "sign in the exponent": (decoder(mask=0x3F), "still in your exponent field"),
        "no hidden 1": (decoder(hidden=0.0), "the hidden 1 is missing"),
        "divides by 1023": (decoder(steps=1023), "divided by 1023"),
        "divides by 512": (decoder(steps=512), "its fields are sign 0"),
        "does not divide": (d_undivided, "divide it, hidden 1 and all, by 1024"),
        "drops the significand": (d_significand_dropped, "the power of two alone"),
        "returns None": (lambda pattern: print(end=""), "returned None for 0x3c00"),
        "returns text": (lambda pattern: str(d_right(pattern)), "which is no number"),
        "returns the fields": (lambda pattern: (0, 15, pattern & 0x3FF), "returned a tuple, not one number"),
        "raises": (lambda pattern: 1.0 / (pattern - 0x3C00), "It was called with 0x3c00"),
    },
    "encode_fp16": {
        "truncates": (encoder(rounding=math.floor), "the bits past the last were cut off"),
        "always up": (encoder(rounding=math.ceil), "it was rounded up although"),
        "towards −∞": (e_flooring, "the bits past the last were cut off"),
        "half up": (encoder(rounding=e_half_up), "2049 came out as 0x6801, which is 2050, instead of 0x6800, 2048"),
        "half down": (encoder(rounding=e_half_down), "the tie was rounded half down"),
        "clamps": (encoder(top="clamp"), "clamped to the largest number. From 65520 on"),
        "overflow is NaN": (encoder(top="nan"), "that is a NaN pattern"),
        "overflow too early": (encoder(early=65504.0), "Round first, then look for overflow"),
        "flushes subnormals": (encoder(flush=True), "flushed to zero"),
        "truncates subnormals": (e_truncated_below, "rounded to the nearest whole number of steps"),
        "loses −0": (encoder(zero=lambda v: v < 0), "`value < 0` is False for −0.0"),
        "loses the sign": (encoder(zero=lambda v: False), "the sign bit, the first of the 16, is 1"),
        "NaN is inf": (encoder(nan=0x7C00), "NaN became inf"),
        "NaN is zero": (encoder(nan=0), "NaN became a number"),
        "through fp32": (e_by_fp32, "it was rounded twice"),
        "frexp's exponent": (encoder(bias_off=1), "your exponent field is +1 off"),
        "another bias": (encoder(bias_off=-1), "your exponent field is -1 off"),
        "loses the carry": (encoder(join=e_masked), "the carry belongs to the exponent field"),
        "no special case": (e_no_special_case, "that is a NaN pattern"),
        "an exponent too long": (lambda v: encoder()(v) | 0x10000, "goes from 0x0 to 0xffff"),
        "signed": (e_signed, "its pattern read as a signed number"),
        "returns the value": (lambda v: float(np.float16(v)), "a float: the task asks for the pattern"),
        "returns binary digits": (lambda v: f"{encoder()(v):016b}", "`int(text, 2)`"),
        "returns None": (lambda v: print(end=""), "returned None for 1"),
        "returns a list": (lambda v: [0, 15, 0], "returned a list, not an int"),
        "raises at inf": (lambda v: encoder()(v) + 0 * int(v) if v == v else 0x7E00, "It was called with inf"),
    },
    "find_ulp": {
        "constant eps": (u_constant, "that is eps, the gap at 1"),
        "eps · |x|": (u_proportional, "eps · |x| grows with every x"),
        "keeps halving": (u_halving, "the halving ends at the smallest normal number"),
        "log2": (u_log2, "rounds up to a whole number"),
        "frexp off by one": (u_frexp_off, "one power of two too wide"),
        "log2 of a negative": (u_no_abs, "begin with `abs(x)`"),
        "negative is tiny": (u_negative_is_small, "the same on both sides of zero"),
        "signed": (u_signed, "a distance is positive: begin with `abs(x)`"),
        "gap below a power": (u_below_the_power, "the gap below the power of two"),
        "fp16 only": (u_fp16_only, "that is fp16's gap: bf16 has 7"),
        "exponent 0 − bias": (u_field_zero, "not 0 − bias"),
        "no subnormals": (u_no_subnormals, "that is the smallest normal number"),
        "log of 0": (u_zero_forgotten, "0 has no logarithm"),
        "half": (lambda x, fmt: u_right(x, fmt) / 2, "half of what is right"),
        "returns None": (lambda x, fmt: print(end=""), "returned None for"),
    },
    "derive_limits": {
        "E4M3 as IEEE": (deriver(top="ieee"), "max of fp8 E4M3, (4, 3, 'fn') came out as 240, and it is 448"),
        "finite as fn": (
            lambda e, m, s: deriver(top="fn" if s == "finite" else None)(e, m, s),
            "max of fp4 E2M1, (2, 1, 'finite') came out as 4, and it is 6",
        ),
        "fn as finite": (
            lambda e, m, s: deriver(top="finite" if s == "fn" else None)(e, m, s),
            "came out as 480, and it is 448: that would be so under the rule “finite”",
        ),
        "IEEE as finite": (deriver(top="finite"), "holds inf and NaN and no numbers"),
        "bias too large": (deriver(bias_off=1), "exponent field 0 belongs to the subnormals"),
        "bias too small": (deriver(bias_off=-1), "the bias is one too small"),
        "field 0 is normal": (deriver(low_off=-1), "so the smallest normal number has field 1"),
        "subnormals of field 0": (deriver(low=-1), "subnormals have the exponent of field 1"),
        "no subnormals": (k_subnormal_is_normal, "Below it come subnormals"),
        "all subnormal": (k_normal_is_subnormal, "a normal number has its hidden 1"),
        "significand of 1": (deriver(full=1.0), "the largest significand is nearly 2"),
        "significand of 2": (deriver(full=2.0), "one step short of 2"),
        "eps halved": (deriver(steps_off=1), "the hidden 1 does not"),
        "eps doubled": (deriver(steps_off=-1), "the last of them counts 2^-10"),
        "fp16's, always": (k_fp16, "eps of bf16"),
        "a tuple": (k_tuple, "yours is a tuple"),
        "another key": (k_other_keys, "and yours is the keys"),
        "text": (k_text, "which is no number"),
        "returns None": (lambda e, m, s: print(end=""), "returned None for fp16"),
    },
    "round_bf16": {
        "still cuts": (found(1.1, b_cut), "it was only cut"),
        "NaN becomes inf": (found(1.1, b_nan_lost), "NaN became inf"),
        "only some NaN": (found(1.1, b_only_quiet_nan), "NaN became inf"),
        "half up": (found(1.1, b_half_up), "a tie, and it went up"),
        "half down": (found(1.1, b_half_down), "a tie goes to the even neighbour"),
        "ties to odd": (found(1.1, b_odd), "a tie, and it went up"),
        "always up": (found(1.1, b_always_up), "the value below is nearer"),
        "only positive": (found(1.1, b_positive_only), "a negative number was only cut"),
        "loses the sign": (found(1.1, b_sign_lost), "the sign got lost"),
        "clamps": (found(1.1, b_clamped), "held back at the largest number"),
        "flushes subnormals": (found(1.1, b_flushed), "a subnormal was flushed"),
        "patterns": (found(1.1, b_patterns), "returned int32, the patterns perhaps"),
        "float32": (found(1.1, b_float32), "the task asks for bfloat16"),
        "in place": (found(1.1, b_in_place), "changed the tensor that it was given"),
        "flattens": (found(1.1, b_flat), "the shape as it is"),
        "returns None": (found(1.1, b_none), "returned None"),
        "a list": (found(1.1, b_list), "returned a list, not a tensor"),
        "no function": (found(1.1, 5), "is a function, and yours is a int"),
        "only the function": (b_right, "takes a dict with the keys"),
        "bf16 has it": (found(1.0), "its lower 16 bits are all 0"),
        "less than half": (found(1.001), "less than half of a step"),
        "an even tie": (found(1 + 2**-8), "it is a tie"),
        "inf": (found(math.inf), "a number that float32 holds"),
        "too large": (found(1e300), "a number that float32 holds"),
        "value left open": ({"differs": ..., "to_bf16": b_right}, "still `...` for differs"),
        "value as text": (found("1.1"), "write a number, without quotes"),
    },
}

RIGHT = {
    "decode_fp16": {"fields": d_right, "digits": d_right_digits, "tensor": d_right_tensor, "struct": d_right_struct},
    "encode_fp16": {"steps": encoder(), "numpy": e_right_numpy, "struct": e_right_struct, "search": e_right_search},
    "find_ulp": {"frexp": u_right, "loop, exact": u_right_loop, "numpy": u_right_numpy, "clamped": u_right_clamped},
    "derive_limits": {"floats": deriver(), "exact, by pattern": k_right_exact, "the library": k_right_library},
    "round_bf16": {
        "add and cut": found(1.1),
        "numpy, a negative number": found(-1.1, b_right_numpy),
        "torch's cast, an odd tie": found(1 + 3 * 2**-8, b_right_cast),
        "quiet NaN, a tensor": found(torch.tensor(3.4e38), b_right_nan_bits),
    },
}
