"""Answers to `which_dtype`, written without a look at its table of mistakes."""

import numpy as np
import torch

RIGHT = {
    "asked of torch": torch.promote_types(torch.float16, torch.float32),
    "the sum's own": (torch.ones(1).half() + torch.ones(1)).dtype,
    "the alias": torch.float,
}
WRONG = {
    "both": ([torch.float16, torch.float32], "a container"),
    "bool": (torch.bool, "not floating-point"),
    "a tensor class": (torch.FloatTensor, "a type of another kind"),
    "NumPy's dtype": (np.dtype("float32"), "a type of another kind"),
}
