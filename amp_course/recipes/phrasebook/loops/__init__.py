"""Write one training loop in each library's own words: one file a library, each what a reader would paste.

`train(model, batches, precision)` trains with SGD and gradient clipping and returns the loss of every step; precision is
"fp32", "bf16" or "fp16". No file imports another, or anything of the course. `amp_course.recipes.phrasebook` sets their words
side by side; `make test-phrasebook` runs those that run on a CPU.
"""
