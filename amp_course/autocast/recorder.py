"""Watch a model run: every op with the module that called it, and every cast that autocast put in between.

Three things are watched at once. A `TorchDispatchMode` sees the ops that really run, casts among them. A profile
function knows which torch function Python has called, and so tells the model's own `.float()` from a cast that autocast
inserted. `nn.Module.__call__` is wrapped, so that the module at work is known. None of them touches a result. The
backward pass is put to modules by autograd's sequence numbers: a node of the graph belongs to the module in whose call
it was made.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.autocast.events import ROOT, Call, Op, Phase, TorchCall, dtypes, tensors_in
from amp_course.autocast.stand import without_device

# A cast inside one of these is the model's own. All other calls leave casts to autocast.
_OWN_CASTS = {
    *("to", "type", "type_as", "copy_", "_to_copy"),
    *("float", "half", "bfloat16", "double", "cfloat", "cdouble", "chalf"),
    *("int", "long", "short", "char", "byte", "bool"),
}


@dataclass
class Recorder:
    """Collect `ops` and `calls` while its `watch()` is open.

    lower: the dtype that the region lowers to; cached: False among fake tensors, where there is no cache: then a weight's
    second cast, which a real device would take from its cache, is written down as taken from there.
    weights: {id: name} of the model's parameters; trained: the ids of those that need a gradient, which the cache is for
    """

    model: nn.Module
    device_type: str
    lower: torch.dtype | None
    cached: bool
    weights: Mapping[int, str]
    trained: frozenset[int]
    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    phase: Phase = "forward"

    def __post_init__(self) -> None:
        self._paths = {id(module): path or ROOT for path, module in self.model.named_modules()}
        self._open: list[Call] = []
        self._torch_calls: list[TorchCall] = []
        self._copies: dict[int, tuple[str, Tensor]] = {}  # storage → weight; the tensor keeps the storage from reuse
        self._used: set[int] = set()  # storages of copies that an op has read
        self._cast_nodes: dict[int, str] = {}  # sequence number of a cast of autocast's → what it cast
        self._thread = threading.get_ident()

    @property
    def here(self) -> str:
        """The path of the module at work."""
        return self._open[-1].module if self._open else ROOT

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record what this thread's models do inside."""
        original, before = nn.Module.__call__, sys.getprofile()

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(module, *args, **kwargs)
            path = self._paths.get(id(module)) or f"{self.here}.<{type(module).__name__}>"
            with self.calling(path, type(module).__name__, (args, kwargs)) as call:
                result = original(module, *args, **kwargs)
                call.outputs = dtypes(tensors_in(result))
                return result

        nn.Module.__call__ = called  # type: ignore[method-assign]  # as torch.fx does while it traces
        try:
            with _Dispatch(self):
                sys.setprofile(self._profile)
                yield
        finally:
            sys.setprofile(before)
            nn.Module.__call__ = original  # type: ignore[method-assign]

    @contextmanager
    def calling(self, path: str, kind: str, inputs: Any) -> Iterator[Call]:
        """Note a call, and put to it whatever runs inside."""
        call = Call(path, kind, dtypes(tensors_in(inputs)), _sequence_number())
        self.calls.append(call)
        self._open.append(call)
        try:
            yield call
        finally:
            self._open.pop()
            call.end = _sequence_number()

    def _profile(self, frame: Any, event: str, function: Any) -> None:
        if event == "c_call":
            on = torch.is_autocast_enabled(self.device_type)
            self._torch_calls.append(TorchCall(getattr(function, "__name__", "?"), on))
        elif event in ("c_return", "c_exception") and self._torch_calls:
            self._torch_calls.pop()

    def note(self, function: Any, args: Any, result: Any, call: TorchCall) -> None:
        """Write one op down that ran inside of `call`."""
        name, inputs, outputs = function._schema.name.split("::")[-1], list(tensors_in(args)), list(tensors_in(result))
        node = torch._C._current_autograd_node() if self.phase == "backward" else None
        cast, source, size = "", "", 0
        if name in ("_to_copy", "to") and inputs[0].dtype != outputs[0].dtype:
            weight = self.weights.get(id(inputs[0]), "")
            source, size = weight or "activation", outputs[0].nbytes
            cast = self._kind_of_cast(inputs[0], source, call, node)
            if cast == "gradient" and node is not None:
                source = self._cast_nodes[node._sequence_nr()]
            if cast == "autocast" and weight:
                known = any(weight == other for other, _ in self._copies.values())
                self._copies[_storage(outputs[0])] = (weight, outputs[0])
                if known and not self.cached and id(inputs[0]) in self.trained and outputs[0].dtype == self.lower:
                    self._used.add(_storage(outputs[0]))
                    return  # a real device has the copy in its cache
        view = bool(function.is_view)
        call.started |= not view and not cast
        reused = () if view or cast or self.phase == "backward" else self._reused(inputs)
        module = self.here if self._open or node is None else self._module_of(node)
        called = node.name() if node is not None else call.name or name
        self.ops.append(
            Op(self.phase, module, called, name, dtypes(inputs), dtypes(outputs), cast, source, size, reused, view)
        )

    def _kind_of_cast(self, tensor: Tensor, source: str, call: TorchCall, node: Any) -> str:
        if node is not None and node.name() == "ToCopyBackward0":
            return "gradient" if node._sequence_nr() in self._cast_nodes else "model"
        if call.name in _OWN_CASTS or not call.autocast:
            return "model"
        if call.name == "scaled_dot_product_attention" and (call.started or tensor.dtype == self.lower):
            return ""  # where no fused kernel serves, attention computes in float32 inside, with or without autocast
        if tensor.requires_grad and torch.is_grad_enabled():
            self._cast_nodes[_sequence_number() - 1] = source  # the node of this very cast, which has just been made
        return "autocast"

    def _reused(self, inputs: Iterable[Tensor]) -> tuple[str, ...]:
        found = {storage for tensor in inputs if (storage := _storage(tensor)) in self._copies}
        again = found & self._used
        self._used |= found
        return tuple(sorted(self._copies[storage][0] for storage in again))

    def _module_of(self, node: Any) -> str:
        """Return the innermost call in which a node of the graph was made: it began last."""
        number = node._sequence_nr()
        inside = [call for call in self.calls if call.start <= number < call.end]
        return inside[-1].module if inside else ROOT


class _Dispatch(TorchDispatchMode):
    """Run each op as it is, and let the recorder note it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recorder, calls = self._recorder, self._recorder._torch_calls
        open_calls = calls[:]
        sys.setprofile(None)  # what runs in here is not the model's, and fake tensors make many calls of their own
        try:
            options, call = kwargs or {}, open_calls[-1] if open_calls else TorchCall()
            with _autocast_inside(func, recorder.device_type, call.autocast):
                result = func(*args, **options) if recorder.cached else without_device(func, args, options)
            if func.namespace != "prim":  # questions such as "on which device?", which fake tensors ask
                recorder.note(func, (args, options), result, call)
        finally:
            sys.setprofile(recorder._profile)
            calls[:] = open_calls  # as it was: the two calls above have left a mark each, or none
        return result


@contextmanager
def _autocast_inside(func: Any, device_type: str, on: bool) -> Iterator[None]:
    """Leave autocast on for the one op whose kernel calls ops that are cast; a dispatch mode switches it off below itself."""
    fused = func is torch.ops.aten._transformer_encoder_layer_fwd.default and on
    if fused:
        torch.set_autocast_enabled(device_type, True)
    try:
        yield
    finally:
        if fused:
            torch.set_autocast_enabled(device_type, False)


def _sequence_number() -> int:
    """Return the number that the next node of autograd's graph will get in this thread."""
    return torch._C._autograd._get_sequence_nr()


def _storage(tensor: Tensor) -> int:
    """Return an address that a tensor and its views share; 0 for one without a storage of its own, such as a sparse one."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0
