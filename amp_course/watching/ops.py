"""Watch every op of a training: which ones make inf or NaN from finite numbers, and where it goes.

A `TorchDispatchMode` sees each op that runs, below autocast and autograd, forward and backward, and
checks its results in one pass over the values. Only where they are not finite does it look closer:
at the inputs, the module and the line. It changes nothing: no result, no hook on a module, no
random number. Once closed, it costs nothing.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.kit.compiled import uncompiled_run
from amp_course.kit.tensors import tensors_in
from amp_course.watching import taps
from amp_course.watching.op_schemas import OpSchema, is_nonfinite_in_new_places, schema_of
from amp_course.watching.origins import MADE, Frame, Line, NonfiniteOrigin, Phase, caller
from amp_course.watching.sources import NO_SOURCE, Source
from amp_course.watching.tracker import SCALER, Tracker
from amp_course.watching.values import (
    INF,
    NAN,
    Values,
    extremes,
    finite_values,
    infinite_constants,
    inspect_values,
    is_finite,
)

_RECENT = 12  # ops that an origin lists as run before it
_MOST_PLACES = 100_000  # forward ops whose lines are remembered for the backward pass
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


class Watch(Tracker, TorchDispatchMode):
    """A context that records the origins of inf and NaN.

    step:     number of the current step
    compiled: returns True if compiled code was called
    """

    def __init__(self, models: Iterable[nn.Module] = ()) -> None:
        super().__init__(models)
        self.step = 1
        self.compiled: Callable[[], bool] = lambda: False
        self._recent: deque[tuple[str, Phase, str, torch.dtype, float]] = deque(maxlen=_RECENT)
        # Sequence number of a graph's node → path of its module, line
        self._places: dict[int, tuple[str, tuple[CodeType, int] | None]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        self.compiled = self._stack.enter_context(uncompiled_run())
        self._stack.enter_context(warnings.catch_warnings())
        about_hooks = "Using `torch.compile.module.` when there are global hooks"
        warnings.filterwarnings("ignore", about_hooks)
        self._stack.enter_context(taps.listening(self))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()
        self.look_at_weights()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled meanwhile, and keeping the compiler off is slow."""
        return False

    # ---- ops ----

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, op = kwargs or {}, schema_of(func)
        if self.paused or self._in_other_thread() or taps.stands_aside():
            return func(*args, **kwargs)
        if op.name == "lift_fresh":
            return self._made_of_numbers(func(*args, **kwargs))
        return func(*args, **kwargs) if op.is_view else self._run(func, op, args, kwargs)

    def _made_of_numbers(self, tensor: Tensor) -> Tensor:
        """Note where inf or NaN was written as a number: by `torch.tensor`, by `x[0] = nan`."""
        if not is_finite(tensor):
            self.sources.mark(tensor, ((), (f"{MADE}{Line.of(caller())}",)))
        return tensor

    def _run(self, func: Any, op: OpSchema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op, and look closer if its results are not finite."""
        if op.name == "_local_scalar_dense" and not is_finite(args[0]):
            self._read = self.sources.of(args[0])[0]
        if op.unset:
            result = func(*args, **kwargs)
            for tensor in tensors_in(result):
                self.sources.forget(tensor)
            return result
        written = list(op.written(args, kwargs))
        overwritten = [] if op.overwrites else list(self._before_writing(written))
        result = func(*args, **kwargs)
        results = list({id(one): one for one in (*tensors_in(result), *written)}.values())
        largest, dtype = 0.0, None  # over all results
        for tensor in results:
            found = extremes(tensor)
            if found is not None:
                here = max(map(abs, found))
                if dtype is None or (math.isfinite(largest) and not here <= largest):
                    largest, dtype = here, tensor.dtype
        phase = self._phase()
        if phase != "backward":
            self._remember_place()
        if not math.isfinite(largest):
            self._trace(func, args, kwargs, results, written, overwritten, phase)
        elif self.sources:
            for tensor in written:
                self.sources.forget(tensor)
        if dtype is not None:
            self._recent.append((op.name, phase, self.modules.path, dtype, largest))
        return result

    def _before_writing(self, tensors: Iterable[Tensor]) -> Iterator[tuple[Values, Source]]:
        for tensor in tensors:
            found = extremes(tensor)
            if found is not None and all(map(math.isfinite, found)):
                yield finite_values(tensor, found), NO_SOURCE
            elif found is not None:
                yield inspect_values(tensor), self.sources.of(tensor)

    def _remember_place(self) -> None:
        """Note where the graph's node that belongs to this op was made."""
        number = torch._C._autograd._get_sequence_nr() - 1
        if number not in self._places:
            if len(self._places) >= _MOST_PLACES:
                for old in list(itertools.islice(self._places, _MOST_PLACES // 2)):
                    del self._places[old]
            self._places[number] = self.modules.path, caller()

    def _trace(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        results: Sequence[Tensor],
        written: Sequence[Tensor],
        overwritten: Sequence[tuple[Values, Source]],
        phase: Phase,
    ) -> None:
        """Decide whether an op made the inf or NaN in its results, or passes it on."""
        op, ids = schema_of(func), {id(one) for one in written}
        read = [one for one in tensors_in([args, kwargs]) if id(one) not in ids]
        inputs = [*((inspect_values(one), self.sources.of(one)) for one in read), *overwritten]
        if op.name.rstrip("_") == "div" and isinstance(args[1], (int, float)):
            number = Values(f"the number {args[1]:g}", (), math.nan, least=abs(args[1]))
            inputs.append((number, NO_SOURCE))
        origins_by_number: dict[int, NonfiniteOrigin] = {}
        names: dict[str, None] = {}
        # Does an input hold an inf of unknown origin that is no mask's: +inf, or a weight's?
        unknown_inf = False
        for value, (known, names_of_input) in inputs:
            if value.holds:
                origins_by_number |= {origin.number: origin for origin in known}
                names |= dict.fromkeys(names_of_input)
                of_weight = any(name.startswith("the weight") for name in names_of_input[:1])
                if names_of_input and not known and (INF in value.holds or of_weight):
                    unknown_inf = True
        holds_before = frozenset().union(*(value.holds for value, _ in inputs))
        values = [inspect_values(one) for one in results]
        holds = frozenset().union(*(value.holds for value in values))
        origins = tuple(origins_by_number.values())
        if op.name == _UNSCALE:
            for tensor in results:
                self.sources.mark(tensor, (origins, ()))
            for origin in origins:
                origin.reached[SCALER] = None
            return
        if unknown_inf and not origins:
            holds_before |= {NAN}  # what comes of it is the fault of what held it
        source: Source = origins, tuple(names)
        # An infinity may be meant; a NaN made of one never is.
        if (
            (NAN in holds and NAN not in holds_before)
            or not holds_before
            or (not written and is_nonfinite_in_new_places(func, args, read, results))
        ):
            bad = [value for value in values if value.holds]
            made = max(bad, key=lambda value: (NAN in value.holds, INF in value.holds))
            meant = NAN not in made.holds and infinite_constants([*args, *kwargs.values()])
            took = tuple(value for value, _ in inputs)
            origin = self._origin(op.name, made, took, phase, written, origins, meant)
            self.origins.append(origin)
            if origins and all(SCALER in one.reached for one in origins):
                origin.reached[SCALER] = None  # the scaler saw those, so it skips this step anyway
            source = (origin,), ()
        for tensor, value in zip(results, values, strict=True):
            if not value.holds:
                self.sources.forget(tensor)
                continue
            self.sources.mark(tensor, source)
            named = self.modules.names.get(tensor)
            if named and id(tensor) in ids:
                for origin in source[0]:
                    origin.reached[named] = None

    def _origin(
        self,
        op: str,
        made: Values,
        took: tuple[Values, ...],
        phase: Phase,
        written: Sequence[Tensor],
        origins: tuple[NonfiniteOrigin, ...],
        meant: bool,
    ) -> NonfiniteOrigin:
        in_pass = phase in ("backward", "recomputation")
        node = torch._C._current_autograd_node() if in_pass else None
        module, line = self.modules.path, None
        if node is not None and (place := self._places.get(node._sequence_nr())) is not None:
            path, line = place
            module = module if self.modules.running else path
        names = (self.modules.names.get(one) for one in written if not is_finite(one))
        return NonfiniteOrigin(
            number=len(self.origins) + 1,
            step=self.step,
            phase=phase,
            op=op,
            module=module,
            tensor=next((named[1] for named in names if named), ""),
            made=made,
            took=took,
            line=Line.of(caller()),
            forward=Line.of(line),
            node=node.name() if node is not None and not self.modules.running else "",
            origins=origins,
            meant=meant,
            before=tuple(Frame(*one[:3], str(one[3])[6:], one[4]) for one in self._recent),
        )
