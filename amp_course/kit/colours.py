"""One colour and a second cue for each recipe, format, field and zone, for figures and for HTML.
Imports nothing.
"""

# Okabe and Ito's palette, made for colour-blind people; the hatch is a second cue.
COLOURS = {
    "fp32": "#0072B2",
    "tf32": "#56B4E9",
    "amp_fp16": "#D55E00",
    "amp_bf16": "#009E73",
    # The recipes of chapter 08: o0 is fp32, and o1 is AMP in fp16.
    "o0": "#0072B2",
    "o1": "#D55E00",
    "o2": "#E69F00",
    "o3": "#CC79A7",
    "half_bn32": "#8C6D31",
    "pure_bf16": "#56B4E9",
    "pure_bf16_sr": "#7570B3",
}
HATCHES = {
    "fp32": "",
    "tf32": "..",
    "amp_fp16": "//",
    "amp_bf16": "xx",
    "o0": "",
    "o1": "//",
    "o2": "\\\\",
    "o3": "--",
    "half_bn32": "++",
    "pure_bf16": "..",
    "pure_bf16_sr": "oo",
}
FORMAT_COLOURS = {
    "fp64": "#444444",
    "fp32": COLOURS["fp32"],
    "tf32": COLOURS["tf32"],
    "bf16": COLOURS["amp_bf16"],
    "fp16": COLOURS["amp_fp16"],
    "fp8 E5M2": "#E69F00",
    "fp8 E4M3": "#CC79A7",
    "fp6 E3M2": "#8C6D31",
    "fp6 E2M3": "#7570B3",
    "fp4 E2M1": "#999999",
}
FORMAT_LINES = {  # the second cue of a format's colour, for lines: matplotlib's linestyles
    "fp64": "-",
    "fp32": "-",
    "tf32": "--",
    "bf16": "-",
    "fp16": "--",
    "fp8 E5M2": "-.",
    "fp8 E4M3": ":",
    "fp6 E3M2": "-.",
    "fp6 E2M3": ":",
    "fp4 E2M1": "--",
}
FIELDS = {  # the parts of a bit pattern: fill, and the letter that is the second cue
    "sign": ("#D55E00", "s"),
    "exponent": ("#009E73", "e"),
    "significand": ("#0072B2", "m"),
}
ZONES = {  # what happens to a number in a format
    "lost": ("#D55E00", "xx"),
    "subnormal": ("#E69F00", "//"),
    "normal": ("#009E73", ""),
    "overflow": ("#CC79A7", ".."),
}
PARTS = {  # the parts of a step's memory, from the bottom up
    "parameters": ("#0072B2", ""),
    "gradients": ("#56B4E9", "//"),
    "optimizer_state": ("#CC79A7", "xx"),
    "activations": ("#E69F00", ".."),
    "cast_copies": ("#999999", "\\\\"),
}
KEPT = {  # what a recipe keeps for each parameter
    "weights": PARTS["parameters"],
    "master": ("#009E73", "++"),
    "gradients": PARTS["gradients"],
    "optimizer_state": PARTS["optimizer_state"],
}
INK, FAINT = "#222222", "#8a8a8a"
