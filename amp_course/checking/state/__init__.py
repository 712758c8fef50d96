"""The state that all cells of a notebook share: how to read it, put it back, and what to say when it was changed.

Covered are the default dtype and device, grad and inference mode, autocast, modes and hooks (`torch_modes`), replaced
functions and constants (`patched`), forward mode and the compiler's stance (`torch_autograd`): leaving one of these changed is
a fault. Then the settings of torch (`torch_settings`, `torch_autograd`), of Python (`process`, `interpreter`), of NumPy,
matplotlib and others (`libraries`). Random states are in `kit.random_state`, SIGALRM is the time limit's (`checking.limit`).
Nothing here starts CUDA.

Not covered: what an answer changes inside objects (a list, a model, a function's code), files that it writes outside of
its temporary folder, `faulthandler`, resource limits, file descriptors (`os.dup2`), private variables of libraries and
plain ones of classes, and a matplotlib that it is the first to load. Threads and processes that it starts are named and
go on running.
"""

from amp_course.checking.state.interpreter import INTERPRETER
from amp_course.checking.state.item import UNCHANGED, Item
from amp_course.checking.state.libraries import LIBRARIES
from amp_course.checking.state.patched import PATCHED
from amp_course.checking.state.process import PROCESS, TRACING
from amp_course.checking.state.torch_autograd import TORCH_AUTOGRAD
from amp_course.checking.state.torch_modes import TORCH_MODES
from amp_course.checking.state.torch_settings import TORCH_SETTINGS

# In the order in which they are put back: first what would run while the rest is put back.
STATE = (TRACING, PATCHED, *TORCH_MODES, *TORCH_AUTOGRAD, *TORCH_SETTINGS, *PROCESS, *INTERPRETER, *LIBRARIES)

__all__ = ["STATE", "UNCHANGED", "Item"]
