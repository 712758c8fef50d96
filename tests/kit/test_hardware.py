"""The machine report: how a format is judged, that it reads well,
and that asking for it changes nothing.
"""

import html
import html.parser
import json
import random
import warnings
from collections.abc import Iterator

import numpy
import pytest
import torch

from amp_course.kit import dtypes, hardware, measure
from amp_course.kit.dtypes import DtypeSupport, judge
from amp_course.kit.hardware import MachineReport, machine_report, pick_device


def report_with(*supports: DtypeSupport) -> MachineReport:
    return MachineReport(
        "cuda", "A <GPU> & co", "9.0", 2**34, 8, 4, "2.13.0", "3.11.7", "Linux", "12.6", supports
    )


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Time small matmuls, and few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dtypes, "SIZE_CPU", 64)
        patch.setattr(dtypes, "ROUNDS_SECONDS", 0.0)
        patch.setattr(dtypes, "TURN_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def report() -> MachineReport:
    return machine_report("cpu")


def test_a_default_device_of_the_users_changes_nothing(report: MachineReport) -> None:
    """As after `torch.set_default_device("cuda")`; "meta" stands for any other device than the
    one that is asked about.
    """
    with torch.device("meta"):
        again = machine_report("cpu")
    assert [one.state == "unsupported" for one in again.dtypes] == [
        one.state == "unsupported" for one in report.dtypes
    ]


@pytest.mark.parametrize(
    ("name", "measured", "fp32", "state", "times"),
    [
        ("fp32", 0.001, 0.001, "native", 1.0),
        ("bf16", 0.0004, 0.001, "native", 0.4),
        ("bf16", 0.00119, 0.001, "native", 1.19),
        ("bf16", 0.00121, 0.001, "emulated", 1.21),
        ("fp16", 0.042, 0.001, "emulated", 42.0),
        ("fp16", "not implemented for Half", 0.001, "unsupported", None),
        ("fp16", 0.001, "out of order", "native", None),
        ("tf32", 0.0002, 0.001, "native", 0.2),
        ("tf32", 0.00099, 0.001, "unsupported", 0.99),  # a GPU that ignores the switch
    ],
)
def test_a_format_is_judged_by_its_time(
    name: str, measured: float | str, fp32: float | str, state: str, times: float | None
) -> None:
    support = judge(name, measured, fp32)
    assert support.state == state
    assert support.times_fp32 == pytest.approx(times)


def test_a_matmul_that_raises_makes_a_format_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = dtypes._one_matmul

    def no_half(name: str, matrix: torch.Tensor, device: torch.device) -> float:
        if matrix.dtype == torch.float16:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nand more")
        return real(name, matrix, device)

    monkeypatch.setattr(dtypes, "_one_matmul", no_half)
    fp16 = dtypes.dtype_support("cpu")[3]
    assert fp16 == DtypeSupport(
        "fp16", "unsupported", None, None, "\"addmm_impl_cpu_\" not implemented for 'Half'"
    )


def test_formats_take_turns_and_the_fastest_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    seconds = {
        "fp32": iter([9.0, 0.3, 0.1, 0.2]),
        "bf16": iter([9.0, 0.5, 0.6, 0.4]),
        "fp16": iter([9.0, 4, 4, 4]),
    }

    def fake(name: str, matrix: torch.Tensor, device: torch.device) -> float:
        order.append(name)
        assert matrix.dtype == dtypes.DTYPES[name]
        assert not torch.is_autocast_enabled("cpu")
        return next(seconds[name])

    monkeypatch.setattr(dtypes, "_one_matmul", fake)
    with torch.autocast("cpu", torch.bfloat16):
        found = dtypes.dtype_support("cpu")
    # the first round warms up, and its 9 s do not count
    assert order == 4 * ["fp32", "bf16", "fp16"]
    assert [support.seconds for support in found] == [0.1, None, 0.4, 4]


def test_the_report_knows_this_machine(report: MachineReport) -> None:
    assert report.device == "cpu"
    assert report.compute_capability is None
    assert report.torch_version == torch.__version__
    assert report.threads == torch.get_num_threads()
    assert 1 <= report.cpu_cores <= 4096
    assert report.device_name
    assert report.memory_bytes is None or report.memory_bytes > 2**28
    assert [support.name for support in report.dtypes] == ["fp32", "tf32", "bf16", "fp16"]
    fp32, tf32, *low = report.dtypes
    assert (fp32.state, fp32.times_fp32) == ("native", 1.0)
    assert tf32.state == "unsupported"
    # What they are depends on the machine; that they agree with their numbers does not.
    for support in low:
        if support.state != "unsupported":
            assert support.seconds and support.times_fp32 and fp32.seconds
            assert support.times_fp32 == pytest.approx(support.seconds / fp32.seconds)
            assert support.state == ("emulated" if support.times_fp32 > dtypes.SLOWER else "native")


def test_asking_changes_nothing_and_warns_of_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    torch.set_float32_matmul_precision("high")
    state = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
    try:
        with warnings.catch_warnings(record=True) as caught, torch.autocast("cpu", torch.bfloat16):
            warnings.simplefilter("always")
            report = machine_report("cpu")
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not caught
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (random.getstate(), str(numpy.random.get_state())) == state[1:]
    assert report.dtypes[0].times_fp32 == 1.0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("backends", [dtypes._BACKENDS, []])  # torch 2.9 and later, and before
def test_the_global_precision_is_given_back(
    backends: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "_BACKENDS", backends)
    torch.set_float32_matmul_precision("medium")
    try:
        with dtypes._restored_matmul_precision():
            dtypes._set_tf32(False)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_report_goes_through_json(report: MachineReport) -> None:
    back = json.loads(json.dumps(report.to_dict()))
    assert back["torch_version"] == torch.__version__
    assert [support["state"] for support in back["dtypes"]] == [
        support.state for support in report.dtypes
    ]


def test_the_reading_is_written_from_the_numbers() -> None:
    report = report_with(
        judge("fp32", 0.001, 0.001),
        judge("tf32", 0.00015, 0.001),
        judge("bf16", 0.00043, 0.001),
        judge("fp16", 0.042, 0.001),
    )
    assert report.reading == (
        'tf32 matmuls take 0.15× the time of fp32: torch.set_float32_matmul_precision("high") '
        "turns them on. "
        "bf16 matmuls take 0.43× the time of fp32: AMP in bf16 can pay here. fp16 matmuls take 42× "
        "the time of fp32: fp16 here is for learning, not for speed."
    )
    plain = report_with(
        judge("fp32", 1, 1), judge("tf32", "no", 1), judge("bf16", 1.0, 1), judge("fp16", "no", 1)
    )
    assert plain.reading == (
        "bf16 matmuls take 1.00× the time of fp32: AMP in bf16 saves memory here, and little time. "
        "fp16 matmuls do not run here."
    )


@pytest.mark.parametrize(
    ("bf16", "fp16", "words", "not_said"),
    [
        (0.4, 0.5, [], ["emulated here", "CPUs"]),
        (
            0.4,
            42.0,
            ["fp16 is emulated here", "hardly any CPU"],
            ["bf16 is fast on", "or fp16 costs"],
        ),
        (
            41.0,
            42.0,
            ["bf16 and fp16 are emulated here", "bf16 is fast on CPUs", "fp16 is fast on GPUs"],
            [],
        ),
        (41.0, 0.5, ["bf16 is emulated here", "Ampere"], ["fp16 is fast"]),
    ],
)
def test_emulated_formats_are_explained_and_no_others(
    bf16: float, fp16: float, words: list[str], not_said: list[str]
) -> None:
    report = report_with(
        judge("fp32", 1, 1), judge("tf32", "no", 1), judge("bf16", bf16, 1), judge("fp16", fp16, 1)
    )
    assert all(word in report.explanation for word in words)
    assert not any(word in report.explanation for word in not_said)
    assert bool(report.explanation) == (max(bf16, fp16) > 1.2)
    for text in (str(report).replace("\n", " "), html.unescape(report._repr_html_())):
        assert report.explanation in text and report.reading in text


def test_the_text_shows_every_row() -> None:
    text = str(report_with(judge("fp32", 0.001, 0.001), judge("fp16", 0.042, 0.001)))
    assert "cuda: A <GPU> & co, compute capability 9.0" in text
    assert "16.0 GiB" in text
    assert "2.13.0 (built for CUDA 12.6)" in text
    assert "fp16   ◐ emulated  42.0 ms     42×        works, but slower than fp32" in text
    assert not any(line.endswith(" ") for line in text.splitlines())


class FakeBackend:
    def __init__(self, available: bool) -> None:
        self.available = available

    def is_available(self) -> bool:
        return self.available


@pytest.mark.parametrize(
    ("there", "working", "picked"),
    [
        (set(), set(), "cpu"),
        ({"cuda", "mps"}, {"cuda", "mps"}, "cuda"),
        ({"cuda", "xpu"}, {"xpu"}, "xpu"),  # a CUDA device that the build has no kernels for
        ({"mps"}, {"mps"}, "mps"),
        ({"mps"}, set(), "cpu"),
    ],
)
def test_the_first_device_that_works_is_picked(
    there: set[str], working: set[str], picked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ones(size: int, device: str) -> torch.Tensor:
        if device not in working:
            raise RuntimeError("no kernel image is available for execution on the device")
        return torch.tensor([1.0])

    monkeypatch.setattr(torch, "cuda", FakeBackend("cuda" in there))
    monkeypatch.setattr(torch, "xpu", FakeBackend("xpu" in there))
    monkeypatch.setattr(torch.backends, "mps", FakeBackend("mps" in there))
    monkeypatch.setattr(hardware.torch, "ones", ones)
    assert pick_device() == torch.device(picked)


def test_a_busy_machine_judges_no_format(monkeypatch):
    waits = iter([{"main": 0}, {"main": 10**12}])
    monkeypatch.setattr(measure, "read_waits", lambda: next(waits))
    monkeypatch.setattr(
        dtypes,
        "_matmul_seconds",
        lambda device: {**dict.fromkeys(dtypes.DTYPES, 1e-3), "tf32": "none"},
    )
    report = machine_report("cpu")
    assert [support.state for support in report.dtypes] == [
        "unknown",
        "unsupported",
        "unknown",
        "unknown",
    ]
    assert all(support.times_fp32 is None for support in report.dtypes)
    assert "too busy to tell" in report.reading and not report.explanation
    assert "emulated" not in str(report) and "time of fp32" not in report._repr_html_()


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("1600000 100000", 8), ("20000 100000", 1), ("", 8)],
)
def test_a_quota_counts_as_cores(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(
        hardware.os, "sched_getaffinity", lambda process: set(range(8)), raising=False
    )
    monkeypatch.setattr(hardware, "_CPU_MAX", tmp_path / "cpu.max")
    assert hardware.usable_cores() == 8  # no such file
    hardware._CPU_MAX.write_text(quota)
    assert hardware.usable_cores() == cores
