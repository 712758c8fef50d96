"""The modules of a training: their paths, the names of their weights, and which of them runs."""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary


class ModulePaths:
    """Keeps no module and no weight alive.

    models:  the outermost modules
    paths:   module → its path in its model
    names:   parameter or buffer → ("weight", "0.bias"); not by id, which may be reused
    running: modules whose forward pass has begun and not ended, the innermost last
    """

    def __init__(self) -> None:
        self.models: WeakSet[nn.Module] = WeakSet()
        self.paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self.names = WeakTensorKeyDictionary()
        self.running: list[nn.Module] = []

    @property
    def path(self) -> str:
        """The path of the module that runs, "" outside of any."""
        return self.paths.get(self.running[-1], "") if self.running else ""

    def register(self, model: nn.Module) -> None:
        self.models.add(model)
        for path, module in model.named_modules():
            self.paths.setdefault(module, path.replace("_orig_mod.", "").replace("_orig_mod", ""))
        weights, buffers = model.named_parameters(), model.named_buffers()
        for kind, named in (("weight", weights), ("buffer", buffers)):
            for path, tensor in named:
                self.names.setdefault(tensor, (kind, path.replace("_orig_mod.", "")))

    def begins(self, module: nn.Module) -> None:
        if module not in self.paths:  # made in a forward pass
            self.paths[module] = f"{self.path}.<{type(module).__name__}>".lstrip(".")
        self.running.append(module)

    def ends(self, module: nn.Module) -> bool:
        """Note the end of a forward pass; return True if it was that of an outermost module."""
        if module not in self.running:
            return False
        while self.running.pop() is not module:  # modules inside it raised
            pass
        return not self.running
