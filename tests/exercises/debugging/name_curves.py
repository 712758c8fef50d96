"""Answers to `name_curves`, written without a look at its table of mistakes."""

RIGHT_NAMES = {
    "A": "autocast-left-open",
    "B": "nothing",
    "C": "still-scaled",
    "D": "clipped-while-scaled",
    "E": "learning-rate-too-high",
    "F": "never-cleared",
    "G": "nan-in-data",
    "H": "beyond-fp16",
}
RIGHT = {
    "as in the list": RIGHT_NAMES,
    "another order, underscores": {
        letter: name.replace("-", "_").upper() for letter, name in reversed(RIGHT_NAMES.items())
    },
    "a key more": RIGHT_NAMES | {"note": "E is a rate of 8"},
}
WRONG = {
    "A and D swapped": (
        RIGHT_NAMES | {"A": "clipped-while-scaled", "D": "autocast-left-open"},
        "A: clipped-while-scaled",
    ),
    "F and H swapped": (
        RIGHT_NAMES | {"F": "beyond-fp16", "H": "never-cleared"},
        "F: beyond-fp16",
    ),
    "G taken for sound": (RIGHT_NAMES | {"G": "nothing", "B": "nan-in-data"}, "B: nan-in-data"),
    "C and E swapped": (
        RIGHT_NAMES | {"C": "learning-rate-too-high", "E": "still-scaled"},
        "C: learning-rate-too-high",
    ),
    "a letter missing": ({"A": "nothing"}, None),
    "no name of the list": (RIGHT_NAMES | {"H": "overflow"}, None),
    "a list": (list(RIGHT_NAMES.values()), None),
}
