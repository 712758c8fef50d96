"""The plugin that starts a kernel again where it died at once."""

import pytest

from tests.notebooks import kernel_start


@pytest.mark.parametrize(("deaths", "started"), [(2, True), (3, False)])
def test_a_kernel_that_died_at_once_is_started_again_twice(monkeypatch, deaths, started):
    calls = []

    def start(**options):
        calls.append(options)
        if len(calls) <= deaths:
            raise RuntimeError("Kernel died before replying to kernel_info")
        return "manager", "client"

    monkeypatch.setattr(kernel_start, "_start", start)
    if started:
        assert kernel_start.start_new_kernel(cwd="x") == ("manager", "client")
    else:
        with pytest.raises(RuntimeError, match="Kernel died"):
            kernel_start.start_new_kernel(cwd="x")
    assert calls == [{"cwd": "x"}] * min(deaths + 1, 3)


def test_any_other_failure_is_told_at_once(monkeypatch):
    def start(**options):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(kernel_start, "_start", start)
    with pytest.raises(RuntimeError, match="no such kernel"):
        kernel_start.start_new_kernel()
