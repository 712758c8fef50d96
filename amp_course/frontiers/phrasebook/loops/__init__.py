"""Write one training loop below 16 bits in each library's own words: one file a library, each what a reader would paste.

`train(model, batches, recipe)` trains an `nn.Sequential` and returns the loss of every step; its last layer stays in high
precision. No file imports another, or anything of the course. `make test-phrasebook` runs torchao's.
"""
