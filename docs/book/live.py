"""Run the course's own panels in the reader's browser.

A panel needs no torch to be drawn, but modules that it imports name torch. So its name is there,
without anything behind it; and packages are entered without their `__init__`, which would import
every figure.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path

PANELS = {  # its class → the module that it is in
    "RooflineExplorer": "amp_course.speed.panel",
    "ScaleExplorer": "amp_course.scaler.panel",
    "CollisionExplorer": "amp_course.positions.panel",
    "RangeExplorer": "amp_course.underflow.panel",
    "RankExplorer": "amp_course.distributed.panel",
    "HeadroomMap": "amp_course.debugging.panel",
    "BlockExplorer": "amp_course.frontiers.panel",
    "BitExplorer": "amp_course.bits.panel",
    "LoopWorkbench": "amp_course.patterns.panel",
    "DtypeTrace": "amp_course.autocast.panel",
    "RecipeExplorer": "amp_course.recipes.panel",
}


def name_in(owner, name):
    """Make a name of torch the first time that it is asked for: `__getattr__` of what follows."""
    if name.startswith("__"):
        raise AttributeError(name)
    made = Name(name, (), {"__call__": lambda self, decorated: decorated})
    setattr(owner, name, made)
    return made


class Name(type):
    """A name of torch: `torch.float16`, `nn.Module`, the decorator `torch.no_grad()`."""

    __getattr__ = name_in

    def __repr__(cls):
        return f"torch.{cls.__name__}"


class Named(types.ModuleType):
    """torch, or a module of it."""

    __getattr__ = name_in


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find torch's names, and the course's packages without what they would import."""

    def find_spec(self, name, path=None, target=None):
        is_torch = name.split(".")[0] == "torch"
        if is_torch or (name.split(".")[0] == "amp_course" and self.folder(name, path)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    @staticmethod
    def folder(name, path):
        """Return a package's folder, None for a module."""
        for one in path or sys.path:
            folder = Path(one, name.split(".")[-1])
            if folder.is_dir():
                return str(folder)
        return None

    def create_module(self, spec):
        return Named(spec.name) if spec.name.split(".")[0] == "torch" else None  # a usual module

    def exec_module(self, module):
        name = module.__name__
        if name.split(".")[0] == "torch":
            module.__path__ = []
            return
        parent, _, _ = name.rpartition(".")
        module.__path__ = [self.folder(name, sys.modules[parent].__path__ if parent else None)]


def install():
    """Let imports find what this module has instead of torch."""
    sys.meta_path.insert(0, Finder())


def make(name, data=None):
    """Return a new panel, of what was recorded for it."""
    panel = getattr(importlib.import_module(PANELS[name]), name)
    return panel.of(json.loads(data)) if data else panel()


class Page:
    """The panels of a page that were touched."""

    def __init__(self):
        self.panels = {}

    def touch(self, place, name, data, key, text):
        """Set the control `key` of a panel, and return what the panel is then, as HTML."""
        from amp_course.kit.panel_page import page_of

        if place not in self.panels:
            self.panels[place] = make(name, data)
        panel = self.panels[place]
        panel.controls()[int(key)].take(text)
        return page_of(panel)
