"""The frame of every panel: a title, labelled controls, a view, and a line for errors.

A panel is an ipywidgets `VBox`. It redraws by setting a trait (an `HTML.value`, an `Image.value`), never through an
`Output`, so notebooks compare cleanly; and it carries a still picture for pages without a kernel.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from amp_course.kit.style import png

WIDE = {"description_width": "8em"}  # one width for all labels, so that controls line up


class Panel(widgets.VBox):
    """A titled box of controls and a view.

    A chapter's panel makes its controls, calls `super().__init__(title, controls, view)`, and gives `still()`.
    """

    def __init__(self, title: str, controls: Sequence[widgets.Widget], view: widgets.Widget) -> None:
        self.view = view
        self.message = widgets.HTML(value="", layout=widgets.Layout(min_height="1.5em"))
        head = widgets.HTML(f"<b>{escape(title, quote=False)}</b>")
        head.add_class("amp-title")
        super().__init__(
            [head, *controls, self.message, view],
            layout=widgets.Layout(
                border="1px solid var(--jp-border-color2, #ccc)", padding="8px 12px", max_width="62em"
            ),
        )
        self.add_class("amp-panel")  # by which the course's JupyterLab names it for screen readers

    def tell(self, text: str = "") -> None:
        """Write one line of HTML under the controls; a panel never throws into the notebook.

        Escape what is not ours in it: names of layers, what was typed, the text of an error.
        """
        self.message.value = f'<span role="status">{text}</span>' if text else ""

    def still(self) -> Figure:
        """Return a still picture of the panel as it stands, for a page without a kernel."""
        raise AssertionError("each panel draws its own")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        still = self.still()
        bundle["text/plain"] = repr(self)
        bundle["image/png"] = base64.b64encode(png(still)).decode()
        return bundle, {"image/png": {"alt": getattr(still, "alt", "")}}
