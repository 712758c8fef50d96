"""Predictions for `predict_dtypes`, written without a look at its table of mistakes."""

import types

import torch

f32, bf16 = torch.float32, torch.bfloat16
DTYPES = {
    "mm": bf16,
    "add": f32,
    "in_place": f32,
    "softmax": bf16,
    "norm": bf16,
    "cat": f32,
    "loss": f32,
    "double": torch.float64,
    "mixed": "raises",
    "integers": torch.int64,
    "island": "raises",
    "gradient": f32,
}

RIGHT = {
    "strings, another order": {name: str(dtype) for name, dtype in reversed(DTYPES.items())},
    "short names": DTYPES
    | {"mm": "bf16", "add": "fp32", "double": "double", "mixed": "Raises ", "integers": "int"},
    "a read-only view, one key more": types.MappingProxyType(
        DTYPES | {"note": "float64 is exempt"}
    ),
}
WRONG = {
    "as on a GPU": (DTYPES | {"softmax": torch.float, "norm": torch.float}, "softmax: float32"),
    "nothing raises but nothing clashes": (DTYPES | {"mixed": torch.float16, "island": bf16}, None),
    "a key missing": ({"mm": bf16}, None),
}
