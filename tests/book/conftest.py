"""The book is built once for all its tests, and served on this machine."""

from __future__ import annotations

import functools
import http.server
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.sites import ROOT, build

PANELS: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "book" / "live.py"))["PANELS"]


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Build the book as `make book` does, once for all workers, and return its folder."""
    if worker_id == "master":
        return build("book", tmp_path_factory.mktemp("book"))
    folder = tmp_path_factory.getbasetemp().parent / "book"  # of this run
    with FileLock(f"{folder}.lock"):
        if not (folder / "site" / "index.html").is_file():
            return build("book", folder)
    return folder / "site"


@pytest.fixture(scope="session")
def address(book: Path) -> Iterator[str]:
    """Serve the book, and return its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(book))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
