"""The probe against plain `torch.autocast`, against PyTorch's own test lists and against its
reference.
"""

import importlib
import logging
import sys
import warnings
from types import ModuleType

import pytest
import torch
from torch.utils._pytree import tree_leaves

from amp_course.autocast import probe_policy
from amp_course.autocast.ops import GROUPS, OPS, _op
from amp_course.autocast.policy import REFERENCE, TEXT
from amp_course.autocast.probe import probe_op

LOWER = torch.bfloat16
M = (3, 3)


@pytest.fixture
def policy(request, device):
    return request.getfixturevalue(device)


both = pytest.mark.parametrize("device", ["cpu", "cuda"])


def called(op, dtype, on):
    """Call an op with inputs of `dtype`, inside a plain region or outside;
    the dtype that came out, or "raises".
    """
    arguments, options = op.build(lambda values: values.to(dtype), "cpu")
    try:
        with (
            warnings.catch_warnings(),
            torch.no_grad(),
            torch.autocast("cpu", dtype=LOWER, enabled=on),
        ):
            warnings.simplefilter("ignore")
            result = op.function(*arguments, **options)
    except Exception:
        return "raises"
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            return leaf.dtype.to_real()
    return "no float"


def test_every_op_does_on_the_cpu_what_the_probe_says(cpu):
    assert not cpu.fake
    assert list(cpu.probed) == list(OPS) and len(cpu) > 200
    for row in cpu:
        op = OPS[row.op]
        wide = called(op, torch.float32, on=True)
        narrow, outside = called(op, LOWER, on=True), called(op, LOWER, on=False)
        if row.verdict == "lower":
            assert wide == LOWER or row.message.startswith("its products run in"), row
            assert narrow == LOWER, row
        elif row.verdict == "fp32":
            assert wide == narrow and wide in (torch.float32, "no float"), row
            assert outside != torch.float32, row
        elif row.verdict in ("widest", "unchanged"):
            assert wide in (torch.float32, "no float") and narrow == outside, row
        else:
            assert wide == "raises", row


EXPECTED = {  # the name of a list in PyTorch's own tests → the verdict
    "torch_16": "lower",
    "nn_16": "lower",
    "torch_fp16": "lower",
    "nn_fp16": "lower",
    "methods_fp16": "lower",
    "linalg_fp16": "lower",
    "torch_fp32": "fp32",
    "nn_fp32": "fp32",
    "methods_fp32": "fp32",
    "torch_need_autocast_promote": "widest",
    "torch_expect_builtin_promote": "unchanged",
    "banned": "refused",
}
RENAMED = {
    "lstm_cell": "LSTMCell",
    "gru_cell": "GRUCell",
    "rnn_tanh_cell": "RNNCell",
    "linalg_multi_dot": "multi_dot",
}


@pytest.fixture
def lists_of(monkeypatch):
    """PyTorch's lists by device, without the rest of its test tools:
    those set torch's global flags for good.
    """
    tools = ModuleType("torch.testing._internal.common_utils")
    tools.TEST_WITH_ROCM, tools.TestCase = False, object
    monkeypatch.setitem(sys.modules, tools.__name__, tools)
    lists = importlib.import_module("torch.testing._internal.autocast_test_lists")
    here = torch.device("cpu")
    yield {"cpu": lists.AutocastCPUTestLists(here), "cuda": lists.AutocastTestLists(here)}
    sys.modules.pop(lists.__name__)


# The lists' own `_convolution` has the older signature, which the CPU casts and the newer not.
@pytest.mark.parametrize(("device", "at_least"), [("cpu", 30), ("cuda", 85)])
def test_agrees_with_the_lists_of_pytorchs_own_tests(policy, lists_of, device, at_least):
    compared = set()
    for listing, verdict in EXPECTED.items():
        for name in {entry[0] for entry in getattr(lists_of[device], listing, [])}:
            op = RENAMED.get(name, name)
            if op in policy.probed and policy[op].verdict != "cannot run":
                assert policy[op].verdict == verdict, (op, listing)
                compared.add(op)
    assert len(compared) >= at_least


@both
def test_asks_every_published_op_and_agrees_with_pytorchs_reference(policy, device):
    wrong = {
        (op, policy[op].verdict)
        for verdict, ops in REFERENCE[device].items()
        for op in ops
        if policy[op].verdict != verdict
    }
    known = {("_convolution", "unchanged")} if device == "cpu" else set()
    cannot = {(row.op, "cannot run") for row in policy if row.verdict == "cannot run"}
    assert wrong - cannot == known
    assert {op for ops in TEXT.values() for op in ops} <= set(policy.probed)


def test_the_texts_lists_hold_on_cuda_and_not_on_the_cpu(cpu, cuda):
    assert {row.listed for row in cuda.disagreements()} == {"not listed"}
    assert cuda["scaled_dot_product_attention"].verdict == "lower"
    for op in ("softmax", "layer_norm", "exp", "pow", "sum"):
        assert (cpu[op].verdict, cuda[op].verdict) == ("unchanged", "fp32")
    verdicts = {row.verdict for policy in (cpu, cuda) for row in policy}
    assert verdicts - {"cannot run"} == {"lower", "fp32", "widest", "unchanged", "refused"}
    assert {"einsum", "scatter_add"} <= {row.op for row in cuda.disagreements()}
    wrong = {
        row.op: row.verdict
        for row in cpu.disagreements()
        if row.listed != "not listed" and row.listed != "refused"
    }
    assert set(wrong.values()) == {"unchanged"}
    assert {"softmax", "layer_norm", "exp", "sum", "mv"} <= set(wrong) and len(wrong) > 20
    assert not {"mse_loss", "cross_entropy", "mm", "GRUCell"} & set(wrong)
    assert {row.op: row.verdict for row in cpu.disagreements() if row.listed == "refused"} == {
        "binary_cross_entropy": "fp32"
    }


@pytest.mark.parametrize("source", ["text", "reference"])
@both
def test_every_disagreement_has_its_reason_and_nothing_else_is_listed(policy, device, source):
    lists = TEXT if source == "text" else REFERENCE[device]
    said = {op: verdict for verdict, ops in lists.items() for op in ops}
    disagreements = {row.op: row for row in policy.disagreements(source)}
    for op, row in disagreements.items():
        assert row.listed == said.get(op, "not listed")
        assert row.verdict == policy[op].verdict not in (row.listed, "cannot run")
        assert len(row.why) > 20
        if "PyTorch's reference has it" in row.why:
            assert op in REFERENCE[device][row.verdict]
    for op in policy.probed.keys() - disagreements.keys():
        assert policy[op].verdict in (said.get(op, "unchanged"), "cannot run")


@pytest.mark.parametrize(
    ("function", "shapes", "verdict"),
    [
        (lambda a, b: a @ b, [M, M], "lower"),
        (lambda a, b: (a @ b).float(), [M, M], "lower"),  # cast inside, though float32 comes out
        (lambda a: a.float().exp(), [M], "unchanged"),  # its own cast, not autocast's
        (lambda a: a + 1, [M], "unchanged"),
        (lambda a: a.double(), [M], "unchanged"),
        (lambda a, b: torch.cat([a, b]), [M, M], "widest"),
        (torch.linalg.inv, [M], "fp32"),
    ],
)
def test_judges_functions_of_ones_own(function, shapes, verdict):
    assert probe_op("mine", _op(function, *shapes), "mine", "cpu", LOWER).verdict == verdict


def test_an_op_that_cannot_run_says_why_and_claims_nothing():
    def broken(a):
        raise OSError("no such kernel")

    row = probe_op("mine", _op(broken, M), "mine", "cpu", LOWER)
    assert (row.verdict, row.message) == ("cannot run", "no such kernel")
    assert row.outputs == {"fp32": None, "lower": None, "mixed": None}


def test_what_fake_tensors_cannot_run_is_listed_with_its_message(cuda):
    assert cuda.fake
    cannot = cuda.having("cannot run")  # which depends on the build of PyTorch: 4 to 22 were seen
    assert "linalg_lstsq" in cannot and all(cuda[op].message for op in cannot)
    common = {"matmul", "linear", "conv2d", "softmax", "layer_norm", "cross_entropy", "LSTMCell"}
    assert not common & set(cannot) and len(cannot) < 30


@both
def test_prints_each_op_once_and_shows_as_a_table(policy):
    words = str(policy).split()
    assert all(op in words for op in OPS if " " not in op)
    verdicts = {row.verdict for row in policy}
    assert all(f"({len(policy.having(verdict))})" in str(policy) for verdict in verdicts)
    assert policy._repr_html_().count("<code>") == len(OPS) + 1
    assert ("fake tensors" in str(policy)) == policy.fake
    assert sum(map(len, GROUPS.values())) == len(OPS)  # no name in two groups


@both
def test_leaves_everything_as_it_was(capfd, monkeypatch, device):
    some = ("matmul", "dropout", "linalg_lstsq", "fractional_max_pool2d", "qr")
    monkeypatch.setattr(
        "amp_course.autocast.probe.GROUPS", {"some": {name: OPS[name] for name in some}}
    )
    random, log = torch.get_rng_state(), logging.getLogger("torch._subclasses.fake_tensor")
    records, handler = [], logging.Handler()
    handler.emit = records.append
    log.addHandler(handler)
    try:
        policy = probe_policy(device, torch.float16)
    finally:
        log.removeHandler(handler)
    assert ("linalg_lstsq" in policy.having("cannot run")) == (device == "cuda")
    assert torch.equal(random, torch.get_rng_state())
    assert not torch.is_autocast_enabled(device) and torch.is_grad_enabled()
    assert not log.disabled and not records
    assert capfd.readouterr() == ("", "")


def test_bad_requests_name_cause_and_remedy(cpu):
    near = "softplus, softmax, softmin, soft_margin_loss"
    with pytest.raises(KeyError, match=f"'soft' was not probed; there is: {near}"):
        cpu["soft"]
    with pytest.raises(ValueError, match="no list 'docs' for 'cpu': ask for 'text', or for"):
        cpu.disagreements("docs")
    with pytest.raises(ValueError, match="lowers to"):
        probe_policy("cpu", torch.float32)
    with pytest.raises(ValueError, match="no autocast"):
        probe_policy("gpu", torch.float16)
