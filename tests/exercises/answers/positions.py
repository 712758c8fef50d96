import math
from fractions import Fraction

import torch

from amp_course.bits import encode, round_to


# --- 1. find_collision ------------------------------------------------------------------------------------
def f_right(significand_bits):
    return 2 ** (significand_bits + 1) + 1


def f_right_float(significand_bits):
    return 2.0 * 2.0**significand_bits + 1


def f_right_by_trying(significand_bits):
    ids = torch.arange(2 ** (significand_bits + 2), dtype=torch.float64)
    step = (2.0 ** (torch.floor(torch.log2(ids.clamp(1))) - significand_bits)).clamp(1)
    rounded = torch.round(ids / step) * step
    return torch.tensor(1) + (rounded[1:] == rounded[:-1]).int().argmax()


def f_none(significand_bits):
    f_right(significand_bits)


# --- 2. count_ids -----------------------------------------------------------------------------------------
def c_right(n, fmt):
    digits = fmt.significand_bits + 1
    exact = 2**digits
    if n <= exact + 1:
        return n
    last, most = n - 1, int(fmt.max)

    def up_to(value):
        binade = value.bit_length() - 1
        step = 2 ** (binade - fmt.significand_bits)
        return 1 + exact + (binade - digits) * exact // 2 + round(Fraction(value, step)) - exact // 2

    if last >= most + 2 ** (fmt.max_exponent - fmt.significand_bits) // 2:
        return up_to(most) + 1
    return up_to(last)


def c_right_patterns(n, fmt):
    exact = 2 ** (fmt.significand_bits + 1)
    return float(n if n <= exact + 1 else exact + 1 + encode(n - 1, fmt) - encode(exact, fmt))


def c_endless(n, fmt):
    digits = fmt.significand_bits + 1
    exact = 2**digits
    if n <= exact + 1:
        return n
    binade = (n - 1).bit_length() - 1
    steps = round(Fraction(n - 1, 2 ** (binade - fmt.significand_bits)))
    return 1 + exact + (binade - digits) * exact // 2 + steps - exact // 2


def c_no_inf_id(n, fmt):
    most = int(fmt.max)
    past = most + 2 ** (fmt.max_exponent - fmt.significand_bits) // 2
    return c_right(min(n, past), fmt)


def c_truncates(n, fmt):
    digits = fmt.significand_bits + 1
    exact = 2**digits
    if n <= exact + 1:
        return n
    binade = (n - 1).bit_length() - 1
    steps = (n - 1) // 2 ** (binade - fmt.significand_bits)
    return 1 + exact + (binade - digits) * exact // 2 + steps - exact // 2


def c_half_up(n, fmt):
    digits = fmt.significand_bits + 1
    exact = 2**digits
    if n <= exact:
        return n
    binade = (n - 1).bit_length() - 1
    steps = math.floor(Fraction(n - 1, 2 ** (binade - fmt.significand_bits)) + Fraction(1, 2))
    return 1 + exact + (binade - digits) * exact // 2 + steps - exact // 2


def c_off_by_one(n, fmt):
    return c_right(n, fmt) + (n > 2 ** (fmt.significand_bits + 1) and n & (n - 1) == 0)


def c_last_is_n(n, fmt):
    return c_right(n + 1, fmt)


def c_builds_a_tensor(n, fmt):
    return len(torch.unique(round_to(torch.arange(n, dtype=torch.float64), fmt)))


def c_loops(n, fmt):
    return len({encode(position, fmt) for position in range(n)})


def c_every_token(n, fmt):
    return n


def c_twice_each_binade(n, fmt):
    exact = 2 ** (fmt.significand_bits + 1)
    return n if n <= exact + 1 else exact + 1 + ((n - 1).bit_length() - 1 - fmt.significand_bits) * exact


def c_text(n, fmt):
    return str(c_right(n, fmt))


# --- 3. repair_rope ---------------------------------------------------------------------------------------
def _turn(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _frequencies(x, dtype=torch.float32):
    half = x.shape[-1] // 2
    return 10_000.0 ** (-torch.arange(half, dtype=dtype) / half)


def r_right(x, positions):
    angles = positions.float()[:, None] * _frequencies(x)
    return _turn(x, angles.cos(), angles.sin()).to(x.dtype)


def r_right_autocast_off(x, positions):
    with torch.autocast(x.device.type, enabled=False):
        angles = positions.float()[:, None] @ _frequencies(x)[None, :]
        return _turn(x.float(), angles.cos(), angles.sin()).to(x.dtype)


def r_right_tables_cast(x, positions):
    angles = torch.outer(positions.double(), _frequencies(x, torch.float64))
    return _turn(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


def r_as_given(x, positions):
    angles = positions.to(x.dtype)[:, None] @ _frequencies(x, x.dtype)[None, :]
    return _turn(x, angles.cos(), angles.sin())


def r_casts_after_the_matmul(x, positions):
    angles = (positions.float()[:, None] @ _frequencies(x)[None, :]).float()
    return _turn(x, angles.cos(), angles.sin()).to(x.dtype)


def r_autocast_off_low_ids(x, positions):
    with torch.autocast(x.device.type, enabled=False):
        angles = positions.to(x.dtype).float()[:, None] @ _frequencies(x)[None, :]
        return _turn(x, angles.cos(), angles.sin()).to(x.dtype)


def r_leaks(x, positions):
    angles = positions.float()[:, None] * _frequencies(x)
    return _turn(x, angles.cos(), angles.sin())


def r_low_frequencies(x, positions):
    angles = positions.float()[:, None] * _frequencies(x).to(x.dtype).float()
    return _turn(x, angles.cos(), angles.sin()).to(x.dtype)


def r_low_angles(x, positions):
    angles = (positions.float()[:, None] * _frequencies(x)).to(x.dtype)
    return _turn(x, angles.cos(), angles.sin()).to(x.dtype)


def r_all_low(x, positions):
    angles = positions.to(x.dtype)[:, None] * _frequencies(x).to(x.dtype)
    return _turn(x, angles.cos(), angles.sin()).to(x.dtype)


def r_always_bf16(x, positions):
    return r_right(x, positions).bfloat16()


def r_interleaved(x, positions):
    angles = positions.float()[:, None] * _frequencies(x)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )
    return turned.flatten(-2).to(x.dtype)


def r_backwards(x, positions):
    return r_right(x, -positions)


def r_in_place(x, positions):
    x.copy_(r_right(x, positions))
    return x


def r_leaves_autocast_off(x, positions):
    torch.set_autocast_enabled("cpu", False)
    return r_right(x, positions)


def r_none(x, positions):
    r_right(x, positions)


# --- 4. exact_alibi ---------------------------------------------------------------------------------------
def a_right(slopes, queries, keys):
    return -slopes.float()[:, None, None] * (queries[:, None] - keys[None, :])


def a_right_double(slopes, queries, keys):
    distance = (queries.view(-1, 1) - keys).clamp(min=0).double()
    return torch.stack([-slope * distance for slope in slopes.double()]).float()


def a_low_ids(slopes, queries, keys):
    low = torch.bfloat16
    distance = queries.to(low).float()[:, None] - keys.to(low).float()[None, :]
    return -slopes.float()[:, None, None] * distance


def a_low_distance(slopes, queries, keys):
    return -slopes.float()[:, None, None] * (queries[:, None] - keys[None, :]).bfloat16().float()


def a_cast_last(slopes, queries, keys):
    return a_right(slopes, queries, keys).bfloat16()


def a_cast_last_and_back(slopes, queries, keys):
    return a_right(slopes, queries, keys).bfloat16().float()


def a_matmul(slopes, queries, keys):
    distance = (queries[:, None] - keys[None, :]).float()
    bias = -slopes.float()[:, None] @ distance.reshape(1, -1)
    return bias.float().view(len(slopes), *distance.shape)


def a_positive(slopes, queries, keys):
    return -a_right(slopes, queries, keys)


def a_key_only(slopes, queries, keys):
    return (slopes.float()[:, None, None] * keys).expand(-1, len(queries), -1)


def a_two_products(slopes, queries, keys):
    slope = slopes.float()[:, None, None]
    return slope * keys - slope * queries[:, None]


def a_half(slopes, queries, keys):
    return -slopes.float()[:, None, None] * (queries.half().float()[:, None] - keys.half().float()[None, :])


def a_slopes_dtype(slopes, queries, keys):
    return -slopes[:, None, None] * (queries[:, None] - keys[None, :])


def a_transposed(slopes, queries, keys):
    return a_right(slopes, queries, keys).transpose(1, 2)


def a_none(slopes, queries, keys):
    a_right(slopes, queries, keys)


# --- 5. catch_fault ---------------------------------------------------------------------------------------
def _scores(rope, q, k, starts, offset=3):
    queries, keys = q.expand(len(starts), -1), k.expand(len(starts), -1)
    return (rope(queries, starts + offset).float() * rope(keys, starts).float()).sum(-1)


def _check(rope, dtypes=(torch.float32, torch.bfloat16), autocast=(False, True), end=5000, share=0.02):
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 64, generator=generator)
    for dtype in dtypes:
        for on in autocast:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                scores = _scores(rope, q.to(dtype), k.to(dtype), torch.arange(0, end, 7))
            assert (scores - scores[0]).abs().max() < share * q.norm() * k.norm()


def t_right(rope):
    _check(rope)


def t_right_assert_close(rope):
    x = torch.ones(200, 32, dtype=torch.bfloat16)
    near, far = torch.arange(200), 7000 + torch.arange(200)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = (rope(x, positions).double() for positions in (near, far))
    torch.testing.assert_close(a @ a.T, b @ b.T, atol=1.0, rtol=0)


def t_short(rope):
    _check(rope, end=200)


def t_no_autocast(rope):
    _check(rope, autocast=(False,))


def t_float32_only(rope):
    _check(rope, dtypes=(torch.float32,))


def t_shape_and_dtype(rope):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(8, 64).to(dtype)
            out = rope(x, 4000 + torch.arange(8))
            assert out.shape == x.shape and out.dtype == dtype


def t_norm(rope):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = torch.randn(500, 64).bfloat16()
        assert torch.allclose(rope(x, 4000 + torch.arange(500)).float().norm(dim=-1), x.float().norm(dim=-1), rtol=0.02)


def t_too_loose(rope):
    _check(rope, share=3.0)


def t_too_strict(rope):
    _check(rope, share=1e-6)


def t_one_layout(rope):
    x, positions = torch.randn(50, 64), torch.arange(50)
    torch.testing.assert_close(rope(x, positions), r_right(x, positions), atol=1e-3, rtol=0)


def t_returns(rope):
    x = torch.ones(2, 64)
    out = rope(x, torch.tensor([0, 4000]))
    return bool(torch.isfinite(out).all())


def t_never_calls(rope):
    assert callable(rope)


def t_always_fails(rope):
    rope(torch.ones(1, 2), torch.tensor([0]))
    raise AssertionError("RoPE is broken")


def t_crashes(rope):
    rope(torch.ones(4, 63), torch.arange(4))


WRONG = {
    "find_collision": {
        "forgets the hidden 1": (lambda bits: 2**bits + 1, "hidden 1 before its 7 stored bits"),
        "last exact one": (lambda bits: 2 ** (bits + 1), "is rounded onto it"),
        "last exact one, no hidden 1": (lambda bits: 2**bits, "hidden 1 before its 7 stored bits"),
        "two after": (lambda bits: 2 ** (bits + 1) + 2, "is even and has a value of its own"),
        "one before": (lambda bits: 2 ** (bits + 1) - 1, "is exact"),
        "one digit too many": (lambda bits: 2 ** (bits + 2) + 1, "not two"),
        "bf16 for all": (lambda bits: 257, "for bf16 only"),
        "returns None": (f_none, "returned None"),
        "a text": (lambda bits: "257", "no number"),
    },
    "count_ids": {
        "ignores fp16's end": (c_endless, "fp16 ends at 65,504"),
        "inf does not count": (c_no_inf_id, "one more id, which they share"),
        "off by one at powers of two": (c_off_by_one, "off by one"),
        "truncates": (c_truncates, "cutting digits off"),
        "rounds half up": (c_half_up, "not always up"),
        "last position is n": (c_last_is_n, "no tokens have no ids"),
        "builds a tensor": (c_builds_a_tensor, "one by one, in a loop or a tensor"),
        "loops": (c_loops, "one by one, in a loop or a tensor"),
        "every token": (c_every_token, "stand further apart than 1"),
        "twice each binade": (c_twice_each_binade, "then every binade"),
        "a text": (c_text, "no number"),
    },
    "repair_rope": {
        "as given": (r_as_given, "elementwise"),
        "casts after the matmul": (r_casts_after_the_matmul, "no `.float()` on the result brings back"),
        "autocast off, bf16 ids": (r_autocast_off_low_ids, "position ids were cast to bf16"),
        "leaks float32": (r_leaks, "carry it into attention"),
        "low frequencies": (r_low_frequencies, "inverse frequencies were cast to bf16"),
        "angles cast before cos": (r_low_angles, "before cos and sin"),
        "all in x's dtype": (r_all_low, ", the dtype of x: and what is lost"),
        "always bf16": (r_always_bf16, "whatever was computed in between"),
        "interleaved": (r_interleaved, "2c and 2c + 1"),
        "backwards": (r_backwards, "the sign of sin"),
        "in place": (r_in_place, "changed x itself"),
        "leaves autocast off": (r_leaves_autocast_off, "leaves autocast switched"),
        "returns None": (r_none, "returned None"),
        "a text": (lambda x, positions: "x", "gave a str"),
        "a wrong shape": (lambda x, positions: x[..., 0], "has the shape"),
    },
    "exact_alibi": {
        "bf16 ids": (a_low_ids, "before they were subtracted"),
        "bf16 distance": (a_low_distance, "the distance was rounded"),
        "casts last": (a_cast_last, "its neighbours become one"),
        "casts last, and back": (a_cast_last_and_back, "is a bf16 number"),
        "matmul": (a_matmul, "matmul or einsum"),
        "positive": (a_positive, "far keys are preferred"),
        "key only": (a_key_only, "0 at distance 0"),
        "two products": (a_two_products, "two rounded products"),
        "fp16 ids": (a_half, "fp16"),
        "the slopes' dtype": (a_slopes_dtype, "its neighbours become one"),
        "transposed": (a_transposed, "has the shape"),
        "returns None": (a_none, "returned None"),
    },
    "catch_fault": {
        "short context": (t_short, "up to 256 bf16 holds every integer"),
        "no autocast": (t_no_autocast, "never called it in such a region"),
        "float32 only": (t_float32_only, "training hands it bf16"),
        "shape and dtype": (t_shape_and_dtype, "survive every fault"),
        "length of the vector": (t_norm, "survive every fault"),
        "too loose": (t_too_loose, "below a twentieth"),
        "too strict": (t_too_strict, "leave room for a bf16 result"),
        "one layout": (t_one_layout, "fails a right RoPE"),
        "returns instead of asserting": (t_returns, "returns False passes"),
        "never calls it": (t_never_calls, "never calls the RoPE"),
        "always fails": (t_always_fails, "fails a right RoPE"),
        "crashes": (t_crashes, "no verdict"),
    },
}

RIGHT = {
    "find_collision": {"a power": f_right, "a float": f_right_float, "by trying, a tensor": f_right_by_trying},
    "count_ids": {"binades": c_right, "patterns, a float": c_right_patterns},
    "repair_rope": {
        "elementwise": r_right,
        "autocast off": r_right_autocast_off,
        "tables cast, float64": r_right_tables_cast,
    },
    "exact_alibi": {"integer distance": a_right, "float64, zero above": a_right_double},
    "catch_fault": {"flat scores": t_right, "Gram matrices": t_right_assert_close},
}
