"""Run TensorFlow Federated computations fast: as one XLA program, on a GPU or a CPU.

TFF's own runtime visits clients one message at a time and cannot use a GPU. Here
the same, unmodified computation is compiled. One line at the top of a TFF program does it:

    import runtime

    runtime.install()

Or, for a part of it:

    with runtime.XlaContext(devices='gpu'):      # or 'cpu', or 'gpu:0,gpu:1'
      state = process.initialize()
      for _ in range(100):
        state, metrics = process.next(state, client_data)

`client_data` is a list with one structure of arrays for each client, as for TFF's
own runtime, or with one `tf.data` data set. Any `tff.federated_computation` of known
shapes is compiled, those of `tff.learning` among them.

For many rounds over a fixed population, `create` gives a `Runtime`: data are
uploaded once, clients' states stay on the device and are updated in place, and a
sweep over settings runs as one program.

    with runtime.create('xla', devices='gpu') as xla:
      data = xla.place({'x': x, 'y': y})          # arrays [K, ...]
      states = xla.place_states(None)
      for cohort in cohorts:                      # arrays of client rows
        state, metrics = xla.round(process.next, state, states, data, cohort)

`create('native')` is the same interface on TFF's own runtime, the reference.
`make self-check` says what works on this machine.
"""

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runtime import memory, xla_flags

if TYPE_CHECKING:
  from runtime.interface import ClientData as ClientData
  from runtime.interface import ClientStates as ClientStates
  from runtime.interface import DeviceError as DeviceError
  from runtime.interface import MemberLostError as MemberLostError
  from runtime.interface import Recovery as Recovery
  from runtime.interface import Runtime as Runtime
  from runtime.interface import UnsupportedComputationError as UnsupportedComputationError
  from runtime.native import NativeContext as NativeContext
  from runtime.native import NativeRuntime as NativeRuntime
  from runtime.stored_states import StoredStates as StoredStates
  from runtime.xla.context import AsyncXlaContext as AsyncXlaContext
  from runtime.xla.context import XlaContext as XlaContext
  from runtime.xla.devices import prepare as prepare
  from runtime.xla.runtime import XlaRuntime as XlaRuntime

# TFF takes seconds to import: names are loaded when they are first used.
_MODULES = {
  'AsyncXlaContext': 'runtime.xla.context',
  'ClientData': 'runtime.interface',
  'ClientStates': 'runtime.interface',
  'DeviceError': 'runtime.interface',
  'MemberLostError': 'runtime.interface',
  'Recovery': 'runtime.interface',
  'NativeContext': 'runtime.native',
  'NativeRuntime': 'runtime.native',
  'Runtime': 'runtime.interface',
  'StoredStates': 'runtime.stored_states',
  'UnsupportedComputationError': 'runtime.interface',
  'XlaContext': 'runtime.xla.context',
  'XlaRuntime': 'runtime.xla.runtime',
  'prepare': 'runtime.xla.devices',
}

NAMES = ('xla', 'native')

# XLA reads its flags when it first compiles something. By default, on a CPU, its minimum of NaN and
# a number is the number; and it takes sums over more than 32 numbers in windows, up to seven times
# as slowly, for the digits of long ones, which `runtime.xla.long_sums` keeps.
_DEFAULT_FLAGS = {
  'xla_cpu_enable_fast_min_max': 'false',
  'xla_disable_hlo_passes': 'tree_reduction_rewriter',
}
xla_flags.set_defaults(_DEFAULT_FLAGS)
memory.keep()


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return getattr(importlib.import_module(_MODULES[name]), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def create(
  name: str = 'xla', *, devices: str = 'cpu', clients_per_block: int | None = None
) -> 'Runtime':
  """Makes a runtime and makes its context TFF's default one.

  Args:
    name: `xla` or `native`.
    devices: for `xla`: `auto`, `cpu`, `gpu`, or a list such as `gpu:0,gpu:1` or `cpu,cpu`
      (two cores).
    clients_per_block: for `xla`: clients vectorised at once; None for the default.

  Returns:
    A runtime, to be used in a `with` statement, or closed.

  Raises:
    ValueError: an unknown name or device, or an option of the other runtime.
  """
  if name not in NAMES:
    raise ValueError(f'runtime={name!r}: expected one of {", ".join(NAMES)}.')
  if name == 'native':
    if devices != 'cpu' or clients_per_block is not None:
      raise ValueError('runtime=native runs on the CPU and has no clients_per_block.')
    created = importlib.import_module('runtime.native').NativeRuntime()
  else:
    created = importlib.import_module('runtime.xla.runtime').XlaRuntime(
      devices=devices, clients_per_block=clients_per_block
    )
  # TFF's own default would start a worker that nothing ends.
  importlib.import_module('tensorflow_federated').framework.set_default_context(created.context)
  return created


def with_states_on_disk(
  machine: 'Runtime',
  folder: str | os.PathLike | None = None,
  *,
  fixed: frozenset[str] = frozenset(),
) -> 'Runtime':
  """The same runtime with the clients' states in files.

  Args:
    machine: where the rounds run; it is the caller's to end.
    folder: of the files; by default a temporary one, which goes with the states.
    fixed: names on the first level of the states that no round changes: kept in memory, on no disk.

  See `runtime.stored_states`; the members of `create_hosts` have a file each of their clients'.
  """
  if hasattr(machine, 'store_states'):
    machine.store_states(folder, fixed)
    return machine
  stored_states = importlib.import_module('runtime.stored_states')
  return stored_states.StoringRuntime(machine, folder, fixed=fixed)


def create_hosts(
  size: int,
  *,
  cluster: str = '',
  device: str = 'auto',
  clients_per_block: int | None = None,
  fan_in: int = 0,
  tell: Callable[[str], None] | None = None,
) -> 'Runtime':
  """Makes a runtime whose clients are spread over worker processes; TFF's default one then.

  Whatever a program calls from then on, such as `process.next(state, [client values])`, has the
  clients' work done by the workers if it is compiled as a whole; `context.explain` says so.

  Args:
    size: how many workers.
    cluster: the Ray cluster that they are on: `ray://host:port`, `host:port` from one of its
      machines; by default one of this machine, which ends with the runtime.
    device: of each worker: `cpu`, `gpu`, or `auto` for a GPU where it has one.
    clients_per_block: as for `create`.
    fan_in: how many workers' totals one of them adds up, and so on as a tree; 0 if this process
      adds up all. See docs/scale.md for when it pays.
    tell: is told what is waited for, and of workers that hold the others up; by default these
      are warnings.

  Returns:
    A runtime, to be used in a `with` statement, or closed.

  Raises:
    ValueError: the extra `cluster` is not installed, or there is no such cluster, it is too
      small or others have its CPUs.
    DeviceError: a worker does not start.
  """
  tell = tell or importlib.import_module('runtime.hosts.crew').warn
  crew = importlib.import_module('runtime.hosts.ray_crew').connect(
    cluster, size, device=device, clients_per_block=clients_per_block, tell=tell
  )
  created = importlib.import_module('runtime.hosts.runtime').HostsRuntime(
    crew, fan_in=fan_in, tell=tell
  )
  importlib.import_module('tensorflow_federated').framework.set_default_context(created.context)
  return created


def install(*, devices: str = 'auto', clients_per_block: int | None = None) -> 'XlaContext':
  """Your program, compiled: one line at the top of any TFF program.

      runtime.install()

  From then on whatever the program computes with TFF is compiled, where TFF's own runtime would
  have visited client after client. `XlaContext.explain(computation)` says what is, and what
  is not and why. Python's searches for garbage pass over what is loaded by then: they would take as
  long as compiling a small program.

  Args:
    devices: as for `create`; by default a GPU if there is one, and else all cores.
    clients_per_block: as for `create`.

  Returns:
    The context, which is now TFF's default one.

  Raises:
    ValueError: there is no such device, or the block is not positive.
  """
  context = importlib.import_module('runtime.xla.context').XlaContext(
    devices=devices, clients_per_block=clients_per_block
  )
  importlib.import_module('tensorflow_federated').framework.set_default_context(context)
  memory.pass_over_what_is_loaded()
  return context
