"""Record a model's run: each op that really runs, its dtypes, and the module that called it.

A `TorchDispatchMode` gets the ops below autocast and autograd, and numbers them for `call_stack`,
which finds the operators above each. `nn.Module.__call__` is wrapped to know the current module.
Neither changes a result. In the backward pass autograd's sequence numbers identify the module: a
node of the graph belongs to the call during which it was made.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.autocast.call_stack import Caller, marked, recorded_calls
from amp_course.autocast.isolation import without_device
from amp_course.autocast.records import ROOT, Call, Op, Phase, dtypes
from amp_course.kit.tensors import tensors_in


@dataclass(frozen=True)
class Ran:
    """One op that ran; `casts.ops_of` completes `op` once its caller is known.

    node:   name and sequence number of the autograd node that ran it
    made:   sequence number of the node that it made
    weight: id of the parameter that it casts, or 0; copy: storage of that cast's result, or 0
    read:   storages of such copies that it read
    """

    op: Op
    is_cast: bool
    node: tuple[str, int] | None
    recomputed: bool
    made: int
    weight: int
    copy: int
    read: frozenset[int]


@dataclass
class Recorder:
    """Collect the ops that `ran` and the `calls` of modules while `watch()` is open.

    fake:    True if the model's tensors are fake
    weights: {id: name} of the model's parameters
    callers: who called each op, by its place in `ran`; known when `watch()` closes
    """

    model: nn.Module
    device_type: str
    fake: bool
    weights: Mapping[int, str]
    ran: list[Ran] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    callers: dict[int, Caller] = field(default_factory=dict)
    phase: Phase = "forward"

    def __post_init__(self) -> None:
        named = self.model.named_modules()
        self._paths = {id(module): path.replace("_orig_mod.", "") or ROOT for path, module in named}
        self._open: list[Call] = []
        self._copies: dict[int, Tensor] = {}  # by storage, which a living tensor keeps from reuse
        self._thread = threading.get_ident()

    @property
    def here(self) -> str:
        """The path of the current module."""
        return self._open[-1].module if self._open else ROOT

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record what modules do in this thread."""
        original = nn.Module.__call__

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(module, *args, **kwargs)
            path = self._paths.get(id(module)) or f"{self.here}.<{type(module).__name__}>"
            with self.calling(path, type(module).__name__, (args, kwargs)) as call:
                result = original(module, *args, **kwargs)
                call.outputs = dtypes(tensors_in(result))
                return result

        with recorded_calls(self.device_type, self.callers):
            nn.Module.__call__ = called  # type: ignore[method-assign]  # as torch.fx does while it traces
            try:
                with _Dispatch(self):
                    yield
            finally:
                nn.Module.__call__ = original  # type: ignore[method-assign]

    @contextmanager
    def calling(self, path: str, kind: str, inputs: Any) -> Iterator[Call]:
        """Record a call, and attribute to it whatever runs inside."""
        call = Call(path, kind, dtypes(tensors_in(inputs)), _sequence_number())
        self.calls.append(call)
        self._open.append(call)
        try:
            yield call
        finally:
            self._open.pop()
            call.end = _sequence_number()

    def note(self, function: Any, args: Any, result: Any) -> None:
        """Record an op."""
        name = function._schema.name.split("::")[-1]
        inputs, outputs = list(tensors_in(args)), list(tensors_in(result))
        node = torch._C._current_autograd_node() if self.phase == "backward" else None
        is_cast = name == "_to_copy" and inputs[0].dtype != outputs[0].dtype
        weight = id(inputs[0]) if is_cast and id(inputs[0]) in self.weights else 0
        copy = _storage(outputs[0]) if weight else 0
        if copy:
            self._copies[copy] = outputs[0]
        graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        op = Op(
            self.phase,
            self.here if self._open or node is None else self._module_of(node),
            name,
            name,
            dtypes(inputs),
            dtypes(outputs),
            bytes=outputs[0].nbytes if is_cast else 0,
            view=bool(function.is_view),
        )
        self.ran.append(
            Ran(
                op,
                is_cast,
                (node.name(), node._sequence_nr()) if node is not None else None,
                bool(self._open) and self.phase == "backward",
                _sequence_number() - 1 if graph else -1,
                weight,
                copy,
                frozenset(_storage(tensor) for tensor in inputs) & self._copies.keys(),
            )
        )

    def _module_of(self, node: Any) -> str:
        """Return the innermost call in which a node was made: the one that began last."""
        number = node._sequence_nr()
        inside = [call for call in self.calls if call.start <= number < call.end]
        return inside[-1].module if inside else ROOT


class _Dispatch(TorchDispatchMode):
    """Run each op unchanged, and let the recorder note it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        recorder, options = self._recorder, kwargs or {}
        if func.namespace == "prim":  # such as "on which device?", which fake tensors call
            return func(*args, **options)
        device_type = recorder.device_type
        if (key := _kernel_made_of_ops(func, args, device_type)) is not None:
            # its parts come here one by one, under the autocast state of an unrecorded run
            own = _has_kernel(func, f"Autocast{device_type.upper()}")
            torch.set_autocast_enabled(device_type, _autocast_was_on(device_type) and not own)
            try:
                with self:
                    return func._op_dk(key, *args, **options)
            finally:
                torch.set_autocast_enabled(device_type, False)
        with marked(len(recorder.ran)):
            if recorder.fake:
                result = without_device(func, args, options)
            else:
                result = func(*args, **options)
        recorder.note(func, (args, options), result)
        return result


def _kernel_made_of_ops(
    func: Any, args: tuple[Any, ...], device_type: str
) -> torch._C.DispatchKey | None:
    """Return the key of the kernel of an op that only calls others; None if it computes itself."""
    if any(isinstance(value, Tensor) and value.is_nested for value in args):
        return None
    if func is torch.ops.aten._transformer_encoder_layer_fwd.default:  # the encoder's fast path
        key: torch._C.DispatchKey = getattr(torch._C.DispatchKey, device_type.upper())
        return key
    # autograd splits such ops into their parts; inference_mode does not
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return composite if _has_kernel(func, composite.name) else None


def _has_kernel(func: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _autocast_was_on(device_type: str) -> bool:
    """Return True if autocast was on when Python called the operator: below autocast it is off."""
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        return torch.is_autocast_enabled(device_type)


def _sequence_number() -> int:
    """Return the number that the next node of autograd's graph will get in this thread."""
    return torch._C._autograd._get_sequence_nr()


def _storage(tensor: Tensor) -> int:
    """Return an address that a tensor and its views share; 0 without a storage (sparse ones)."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0
