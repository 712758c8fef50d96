"""Nothing of it is called."""

normalize = pad_center = tiny = None
