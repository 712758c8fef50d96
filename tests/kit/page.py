"""What a browser would make of some HTML, and a text that must stay text in it."""

import dataclasses
import importlib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

import torch

import amp_course

PACKAGE = Path(amp_course.__path__[0])
WICKED = "\"'><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Collect what a browser would make of some HTML."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.read = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.read += [value or "" for _, value in attributes]

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        self.read.append(data)


def assert_harmless(text, is_shown=True):
    page = Page(text)
    for tag, attributes in page.elements:
        wicked = (
            tag == "script"
            or attributes.get("src") == "x"
            or any(name.startswith("on") for name in attributes)
        )
        assert not wicked, f"<{tag} {attributes}> in {text[:2000]}"
    # In code, spans may stand between the words: so only the end is looked for.
    assert not is_shown or "onerror=alert(1)" in "".join(page.read), (
        f"the text is not shown: {text[:2000]}"
    )


def wicked(kind):
    """Return a value of a type with the wicked string wherever a string may be."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is str or kind is typing.Any or kind is object:
        return WICKED
    if kind in (int, float, bool):
        return kind(1)
    if kind is torch.dtype:
        return torch.float16
    if origin is typing.Literal:
        return inside[0]
    if origin in (types.UnionType, typing.Union):
        return wicked(next(one for one in inside if one is not type(None)))
    if origin is tuple and Ellipsis not in inside:
        return tuple(map(wicked, inside))
    if origin in (tuple, list, Sequence):
        return origin([wicked(inside[0])]) if origin is not Sequence else [wicked(inside[0])]
    if origin in (dict, Mapping):
        return {wicked(inside[0]): wicked(inside[1])}
    if getattr(kind, "_is_protocol", False):  # a recipe
        return types.SimpleNamespace(name=WICKED, label=WICKED)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(
            **{
                field.name: wicked(hints[field.name])
                for field in dataclasses.fields(kind)
                if field.init
            }
        )
    raise TypeError(f"no wicked {kind}: say in SPECIAL how to make what holds it")


def classes(in_files, holding):
    """Return the course's classes, from the files that hold a word, that are made there."""
    for path in sorted(PACKAGE.glob(in_files)):
        if re.search(holding, path.read_text("utf-8")):
            module = importlib.import_module(
                ".".join(["amp_course", *path.relative_to(PACKAGE).with_suffix("").parts])
            )
            yield from (
                kind
                for kind in vars(module).values()
                if getattr(kind, "__module__", "") == module.__name__
            )
