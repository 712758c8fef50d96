"""Answers to `choose_recipe`, written without a look at its table of mistakes."""

from types import MappingProxyType

from amp_course.recipes import AMP_BF16, O1, find

NAMES = dict(
    large_batch="o1",
    laptop="o0",
    overflow="amp_bf16",
    memory="pure_bf16_sr",
    stalled="o2",
    too_coarse="o1",
)

RIGHT = {
    "names": NAMES,
    "as labels, in another order": {
        key: name.upper().replace("_", " ") for key, name in reversed(NAMES.items())
    },
    "recipes and classes": NAMES
    | {"large_batch": O1(), "overflow": AMP_BF16, "memory": "Pure-bf16-SR "},
    "found, in a mapping": MappingProxyType({key: find(name) for key, name in NAMES.items()}),
}
WRONG = {
    "two are wrong": (NAMES | {"laptop": "AMP bf16", "memory": "o2"}, "amp_bf16 for laptop"),
    "O1 everywhere": (dict.fromkeys(NAMES, O1), "o1 for laptop"),
    "not on offer here": (NAMES | {"large_batch": "o2"}, None),
    "a number": (NAMES | {"laptop": 0}, None),
    "one missing": ({key: NAMES[key] for key in list(NAMES)[1:]}, None),
}
