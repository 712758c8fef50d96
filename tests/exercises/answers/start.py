import torch

WRONG = {
    "which_dtype": {
        "the narrower wins": (torch.float16, "narrower of the two does not win"),
        "wider than both": (torch.float64, "no further"),
        "bfloat16": (torch.bfloat16, "holds neither"),
        "a string": ("torch.float32", "is a string"),
        "the tensor itself": (torch.ones(1).half() + torch.ones(1), "that is a tensor"),
        "an integer dtype": (torch.int32, "neither of the two tensors"),
        "a number": (32, "no dtype"),
    }
}

RIGHT = {
    "which_dtype": {
        "float32": torch.float32,
        "asked of torch": torch.promote_types(torch.float16, torch.float32),
        "the alias": torch.float,
    }
}
