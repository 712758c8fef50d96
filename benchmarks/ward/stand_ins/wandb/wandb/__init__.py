"""A substitute for wandb, for the ward's scripts: it takes what they log, and sends nothing."""


class _Anything:
    def __init__(self, *given, **more):
        pass

    def __getattr__(self, name):
        return _Anything()

    def __call__(self, *given, **more):
        return _Anything()


init = Image = Histogram = _Anything
log = finish = _Anything()
