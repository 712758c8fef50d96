"""One training loop in each library's own words: one file a library, ready to paste.

`train(model, batches, setting)` returns the loss of every step. In 16 bits it trains with SGD and
gradient clipping, and the setting is "fp32", "bf16" or "fp16"; below 16 bits the setting is a
recipe, and the last layer stays in high precision. No file imports another, or anything of the
course. `make test-phrasebook` runs those that run on a CPU.
"""
