"""What a check cannot put back is named."""

import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from amp_course.checking.sandbox import sandbox


def test_a_thread_that_goes_on_is_named() -> None:
    stop = threading.Event()
    with sandbox() as left:
        threading.Thread(target=stop.wait, name="my worker", daemon=True).start()
        quick = threading.Thread(target=lambda: time.sleep(0.001))
        quick.start()
    stop.set()
    assert left.leaks == [] and len(left.remarks) == 1
    assert "left the thread `my worker` running" in left.remarks[0]
    assert "restart the kernel" in left.remarks[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_process_that_goes_on_is_named() -> None:
    child = multiprocessing.get_context("fork").Process(
        target=time.sleep, args=(60,), name="my child", daemon=True
    )
    with sandbox() as left:
        child.start()
    child.kill()
    child.join()
    assert len(left.remarks) == 1 and "left the process `my child` running" in left.remarks[0]


def test_what_refuses_to_be_put_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    with sandbox() as left:
        os.chdir(tmp_path)
        gone.rmdir()
        torch.set_default_dtype(torch.float64)
    assert torch.get_default_dtype() == torch.float32
    assert "It could not be put back (FileNotFoundError): restart the kernel." in left.remarks[0]
