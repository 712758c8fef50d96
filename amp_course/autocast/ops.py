"""How to call each op of a policy: those of the published lists, and some that every model has.

An op is a function and a description of its arguments, which the probe builds in any dtype on any
device, real or fake.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Make = Callable[[Tensor], Tensor]  # from a float32 argument to one of the dtype that is tried


@dataclass(frozen=True)
class Floats:
    """A float tensor of `shape`, with values in (0, 1)."""

    shape: tuple[int, ...]

    def build(self, make: Make, device: str) -> Tensor:
        """Return the tensor, of a dtype that `make` chooses."""
        count = max(1, torch.Size(self.shape).numel())
        # not random, so that the learner's stream stays as it is; all rows differ, for the solvers
        numbers = torch.arange(1, count + 1, device=device, dtype=torch.float32)
        return make((numbers * 0.618034 % 0.8 + 0.1).reshape(self.shape))


@dataclass(frozen=True)
class Positive:
    """A symmetric positive definite float matrix of `size` × `size`, twice the identity."""

    size: int

    def build(self, make: Make, device: str) -> Tensor:
        """Return the matrix, of a dtype that `make` chooses."""
        return make(2 * torch.eye(self.size, device=device))


@dataclass(frozen=True)
class Whole:
    """An integer tensor of `shape` whose entries are all `value`; no policy touches it."""

    shape: tuple[int, ...]
    value: int
    dtype: torch.dtype = torch.int64

    def build(self, make: Make, device: str) -> Tensor:
        """Return the tensor."""
        return torch.full(self.shape, self.value, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class SampleCall:
    """A call: `function(*arguments, **options)`; Floats, Positive and Whole describe tensors."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def build(self, make: Make, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with tensors for their descriptions, and the options."""

        def built(argument: Any) -> Any:
            if isinstance(argument, list):
                return [built(one) for one in argument]
            return argument.build(make, device) if hasattr(argument, "build") else argument

        return tuple(map(built, self.arguments)), self.options


def _op(function: Callable[..., Any], *arguments: Any, **options: Any) -> SampleCall:
    """Describe a call; a tuple of sizes means Floats of that shape."""

    def read(argument: Any) -> Any:
        if isinstance(argument, list):
            return [read(one) for one in argument]
        return Floats(argument) if isinstance(argument, tuple) else argument

    return SampleCall(function, tuple(map(read, arguments)), options)


def _each(module: Any, names: str, *arguments: Any) -> dict[str, SampleCall]:
    """Describe the same call of several functions of a module."""
    return {name: _op(getattr(module, name), *arguments) for name in names.split()}


def _ones(*shape: int) -> Whole:
    return Whole(shape, 1)


def _pool(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, samples: function(x, 2, output_size=2, _random_samples=samples)


A = torch.ops.aten
M = (3, 3)
B = (2, 3, 3)
LOGITS, CLASSES = (4, 3), _ones(4)
IMAGE, VOLUME = (1, 2, 6, 6), (1, 2, 6, 6, 6)

_PRODUCTS = {
    "__matmul__": _op(operator.matmul, M, M),
    **_each(torch, "matmul mm", M, M),
    "mv": _op(torch.mv, M, (3,)),
    "bmm": _op(torch.bmm, B, B),
    "addmm": _op(torch.addmm, M, M, M),
    "addmm_": _op(lambda a, b, c: a.addmm_(b, c), M, M, M),
    "addmv": _op(torch.addmv, (3,), M, (3,)),
    "addr": _op(torch.addr, M, (3,), (3,)),
    "addbmm": _op(torch.addbmm, M, B, B),
    "baddbmm": _op(torch.baddbmm, B, B, B),
    "chain_matmul": _op(torch.chain_matmul, M, M, M),
    "multi_dot": _op(torch.linalg.multi_dot, [M, M, M]),
    "linalg_vecdot": _op(torch.linalg.vecdot, M, M),
    "einsum": _op(lambda a, b: torch.einsum("ij,jk->ik", a, b), M, M),
    "linear": _op(F.linear, M, M, (3,)),
    "prelu": _op(F.prelu, M, (1,)),
    "conv1d": _op(F.conv1d, (1, 2, 6), (3, 2, 3)),
    "conv2d": _op(F.conv2d, IMAGE, (3, 2, 3, 3)),
    "conv3d": _op(F.conv3d, VOLUME, (3, 2, 3, 3, 3)),
    "conv_transpose1d": _op(F.conv_transpose1d, (1, 2, 6), (2, 3, 3)),
    "conv_transpose2d": _op(F.conv_transpose2d, IMAGE, (2, 3, 3, 3)),
    "conv_transpose3d": _op(F.conv_transpose3d, VOLUME, (2, 3, 3, 3, 3)),
    "conv_tbc": _op(torch.conv_tbc, (6, 1, 2), (3, 2, 3), (3,)),
    "_convolution": _op(
        torch._convolution,
        *(IMAGE, (3, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0]),
        *(1, False, False, True, True),
    ),
    "RNNCell": _op(torch.rnn_tanh_cell, M, M, M, M),
    "GRUCell": _op(torch.gru_cell, M, M, (9, 3), (9, 3), (9,), (9,)),
    "LSTMCell": _op(torch.lstm_cell, M, [M, M], (12, 3), (12, 3), (12,), (12,)),
    "mkldnn_rnn_layer": _op(
        A.mkldnn_rnn_layer,
        *((2, 1, 3), (12, 3), (12, 3), (12,), (12,), (1, 1, 3), (1, 1, 3)),
        *(False, [], 2, 3, 1, True, False, False, False),
    ),
    "scaled_dot_product_attention": _op(F.scaled_dot_product_attention, *[(1, 1, 4, 8)] * 3),
    "_native_multi_head_attention": _op(
        torch._native_multi_head_attention,
        *(*[(1, 4, 8)] * 3, 8, 2, (24, 8), (24,), (8, 8), (8,)),
    ),
}

_POINTWISE = {
    "__pow__": _op(lambda a: a**2.5, M),
    "__rpow__": _op(lambda a: 2.5**a, M),
    "__rdiv__": _op(lambda a: a.__rdiv__(2.5), M),
    "__rtruediv__": _op(lambda a: 2.5 / a, M),
    "pow": _op(torch.pow, M, M),
    **_each(torch, "acos asin cosh erfinv exp expm1 log log10 log1p log2", M),
    **_each(torch, "reciprocal rsqrt sinh tan", M),
    "softplus": _op(F.softplus, M),
    **_each(torch, "abs sqrt sin cos tanh sigmoid erf relu", M),
    **_each(F, "gelu silu mish elu leaky_relu hardswish", M),
    **_each(torch, "add sub mul div maximum minimum atan2", M, M),
    "add_": _op(lambda a, b: a.add_(b), M, M),
    **_each(torch, "addcdiv addcmul", M, M, M),
    "lerp": _op(torch.lerp, M, M, 0.5),
    "where": _op(lambda a, b: torch.where(a > b, a, b), M, M),
    "clamp": _op(torch.clamp, M, 0.2, 0.8),
    "masked_fill": _op(lambda a: a.masked_fill(a > 0.5, 0.0), M),
    "dropout": _op(F.dropout, M, 0.5, training=False),
}

_REDUCTIONS = {
    **_each(torch, "sum prod", M),
    **_each(torch, "cumsum cumprod", M, 0),
    **_each(torch, "mean var std amax", M),
    "logsumexp": _op(torch.logsumexp, M, 0),
    "softmax": _op(torch.softmax, M, 0),
    "softmin": _op(F.softmin, M, dim=0),
    "log_softmax": _op(torch.log_softmax, M, 0),
    "norm": _op(torch.norm, M),
    "linalg_vector_norm": _op(torch.linalg.vector_norm, M),
    "normalize": _op(F.normalize, M),
    "renorm": _op(torch.renorm, M, 2, 0, 1.0),
    **_each(torch, "dist cdist", M, M),
    "pdist": _op(F.pdist, M),
    "cosine_similarity": _op(F.cosine_similarity, M, M),
    "trace": _op(torch.trace, M),
    **_each(torch, "quantile nanquantile", M, 0.5),
    "dot": _op(torch.dot, (3,), (3,)),
    "tensordot": _op(lambda a, b: torch.tensordot(a, b, dims=1), M, M),
    "cross": _op(lambda a, b: torch.cross(a, b, dim=0), M, M),
    "bilinear": _op(F.bilinear, M, M, (2, 3, 3)),
}

_NORMS = {
    "layer_norm": _op(lambda x, w, b: F.layer_norm(x, (3,), w, b), M, (3,), (3,)),
    "rms_norm": _op(lambda x, w: F.rms_norm(x, (3,), w), M, (3,)),
    "group_norm": _op(lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE, (2,), (2,)),
    "instance_norm": _op(F.instance_norm, IMAGE),
    "batch_norm": _op(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), IMAGE, (2,), (2,), (2,), (2,)
    ),
}

_LOSSES = {
    **_each(F, "mse_loss l1_loss smooth_l1_loss huber_loss", M, M),
    "kl_div": _op(lambda a, b: F.kl_div(a, b, reduction="batchmean"), M, M),
    **_each(F, "poisson_nll_loss soft_margin_loss hinge_embedding_loss", M, M),
    **_each(F, "binary_cross_entropy binary_cross_entropy_with_logits", M, M),
    "cross_entropy": _op(F.cross_entropy, LOGITS, CLASSES),
    "cross_entropy_loss": _op(A.cross_entropy_loss, LOGITS, CLASSES),
    "nll_loss": _op(F.nll_loss, LOGITS, CLASSES),
    "nll_loss2d": _op(F.nll_loss, (1, 3, 2, 2), _ones(1, 2, 2)),
    "multi_margin_loss": _op(F.multi_margin_loss, LOGITS, CLASSES),
    "multilabel_margin_loss": _op(F.multilabel_margin_loss, LOGITS, _ones(4, 3)),
    "multilabel_margin_loss_forward": _op(A.multilabel_margin_loss_forward, LOGITS, _ones(4, 3), 1),
    "margin_ranking_loss": _op(F.margin_ranking_loss, (3,), (3,), (3,)),
    "cosine_embedding_loss": _op(F.cosine_embedding_loss, M, M, _ones(3)),
    "triplet_margin_loss": _op(F.triplet_margin_loss, M, M, M),
    "ctc_loss": _op(F.ctc_loss, (4, 1, 3), _ones(1, 2), Whole((1,), 4), Whole((1,), 2)),
}

_SHAPES = {
    **_each(torch, "cat stack", [M, M]),
    "index_copy": _op(lambda a, i, b: a.index_copy(0, i, b), M, _ones(1), (1, 3)),
    "index_put": _op(lambda a, i, b: a.index_put((i,), b), M, _ones(1), (1, 3)),
    "scatter_add": _op(lambda a, i, b: a.scatter_add(0, i, b), M, _ones(1, 3), (1, 3)),
    "embedding": _op(F.embedding, _ones(3), M),
    **_each(F, "max_pool2d avg_pool2d", IMAGE, 2),
    **_each(F, "max_pool3d avg_pool3d", VOLUME, 2),
    "adaptive_avg_pool2d": _op(F.adaptive_avg_pool2d, IMAGE, 2),
    **_each(F, "adaptive_avg_pool3d adaptive_max_pool3d", VOLUME, 2),
    "fractional_max_pool2d": _op(_pool(F.fractional_max_pool2d), IMAGE, (1, 2, 2)),
    "fractional_max_pool3d": _op(_pool(F.fractional_max_pool3d), VOLUME, (1, 2, 3)),
    "max_unpool2d": _op(F.max_unpool2d, (1, 2, 1, 1), _ones(1, 2, 1, 1), 2),
    "max_unpool3d": _op(F.max_unpool3d, (1, 2, 1, 1, 1), _ones(1, 2, 1, 1, 1), 2),
    "reflection_pad1d": _op(A.reflection_pad1d, (1, 2, 6), [1] * 2),
    "reflection_pad2d": _op(A.reflection_pad2d, IMAGE, [1] * 4),
    "replication_pad1d": _op(A.replication_pad1d, (1, 2, 6), [1] * 2),
    "replication_pad2d": _op(A.replication_pad2d, IMAGE, [1] * 4),
    "replication_pad3d": _op(A.replication_pad3d, VOLUME, [1] * 6),
    "interpolate nearest": _op(F.interpolate, IMAGE, scale_factor=2, mode="nearest"),
    "interpolate bilinear": _op(F.interpolate, IMAGE, scale_factor=2, mode="bilinear"),
    "grid_sample": _op(F.grid_sample, IMAGE, (1, 3, 3, 2), align_corners=False),
    **_each(torch, "grid_sampler grid_sampler_2d", IMAGE, (1, 3, 3, 2), 0, 0, False),
    "grid_sampler_3d": _op(torch.grid_sampler_3d, VOLUME, (1, 3, 3, 3, 3), 0, 0, False),
    **_each(A, "_grid_sampler_2d_cpu_fallback", IMAGE, (1, 3, 3, 2), 0, 0, False),
    "fake_quantize_per_tensor_affine": _op(
        torch.fake_quantize_per_tensor_affine, M, 0.1, 0, 0, 255
    ),
}

S = Positive(3)

_LINALG = {
    **{
        f"fft_{name}": _op(getattr(torch.fft, name), M)
        for name in "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn hfft "
        "ihfft".split()
    },
    "stft": _op(lambda x, w: torch.stft(x, 4, window=w, return_complex=True), (16,), (4,)),
    "polar": _op(torch.polar, M, M),
    "view_as_complex": _op(torch.view_as_complex, (3, 2)),
    **{
        f"linalg_{name}": _op(getattr(torch.linalg, name), S)
        for name in "cond matrix_rank cholesky cholesky_ex svdvals svd eigvals eigvalsh eig eigh "
        "inv inv_ex qr".split()
    },
    "linalg_solve": _op(torch.linalg.solve, S, M),
    "linalg_lstsq": _op(torch.linalg.lstsq, S, M),
    "linalg_householder_product": _op(torch.linalg.householder_product, M, (3,)),
    "linalg_tensorinv": _op(lambda a: torch.linalg.tensorinv(a, ind=1), S),
    "linalg_tensorsolve": _op(torch.linalg.tensorsolve, S, (3,)),
    **_each(torch, "inverse pinverse cholesky_inverse", S),
    "cholesky_solve": _op(torch.cholesky_solve, M, S),
    "lu_solve": _op(torch.lu_solve, M, S, Whole((3,), 1, torch.int32)),
    **_each(torch, "_lu_with_info qr svd geqrf", S),
    "orgqr": _op(torch.orgqr, M, (3,)),
    "ormqr": _op(torch.ormqr, M, (3,), M),
    "triangular_solve": _op(torch.triangular_solve, M, S),
}

GROUPS: dict[str, dict[str, SampleCall]] = {
    "products": _PRODUCTS,
    "point by point": _POINTWISE,
    "reductions": _REDUCTIONS,
    "normalisation": _NORMS,
    "losses": _LOSSES,
    "shapes and pictures": _SHAPES,
    "linear algebra and FFT": _LINALG,
}
OPS: dict[str, SampleCall] = {name: op for group in GROUPS.values() for name, op in group.items()}
