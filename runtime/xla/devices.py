"""Which devices to compute on, and what fits on them."""

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from runtime import interface, memory, xla_flags

_MOST_CORES = 16  # More pieces of a cohort cost more than they save.
_GPU_LIMIT = 1024  # Lanes beyond this add memory and compile time, but no speed.
_WORK = 16  # A client's working memory, in sizes of its data and model: measured, 1 to 30.
_CGROUPS = (  # A container's limit and what it uses: version 2, version 1.
  ('memory.max', 'memory.current'),
  ('memory/memory.limit_in_bytes', 'memory/memory.usage_in_bytes'),
)
FAILURES = (
  tf.errors.InternalError,
  tf.errors.UnavailableError,
  tf.errors.UnknownError,
  tf.errors.AbortedError,
)
_was_refused = False
_SMALLEST_LIMIT = 2**28  # Threads need stacks, whatever the computation needs.


def resolve(names: str) -> list[str]:
  """TensorFlow device names from `auto`, `cpu`, `gpu`, or a list such as `gpu:0,gpu:1`.

  `cpu,cpu` has two halves of a cohort worked on at once, for two cores. `auto` is the
  first GPU or, where there is none, the CPU once for each core, or for each of the threads
  that TF_NUM_INTRAOP_THREADS grants this process: workers beside each other share the cores.

  Raises:
    ValueError: a name is malformed, or there is no such device.
  """
  prepare(names)
  devices = []
  for name in _expanded(names):
    kind, _, index = name.partition(':')
    if kind not in ('cpu', 'gpu') or (index and not index.isdigit()):
      raise ValueError(f'device={names!r}: expected auto, cpu, gpu, or a list such as gpu:0,gpu:1.')
    found = tf.config.list_logical_devices(kind.upper()) if kind == 'cpu' else _gpus()
    number = int(index or 0)
    if number >= len(found):
      raise ValueError(
        f'device={names!r}: TensorFlow sees {len(found)} {kind.upper()} device(s)'
        + ('; install the gpu extra and check nvidia-smi.' if kind == 'gpu' and not found else '.')
      )
    devices.append(found[number].name)
  if any('GPU' in device and devices.count(device) > 1 for device in devices):
    raise ValueError(f'device={names!r} names a GPU twice.')
  return devices


def prepare(names: str = 'auto') -> None:
  """Leaves a client to one thread where clients are spread over cores, or there is one thread.

  To be called before TensorFlow computes anything; see `leave_a_client_to_one_thread`.

  Args:
    names: as for `resolve`.
  """
  first, *others = _expanded(names)
  if first.startswith('cpu') and (others or _granted_threads() == 1):
    leave_a_client_to_one_thread()


def leave_a_client_to_one_thread() -> None:
  """Threads for single products and loops would contend with other clients', on other cores.

  Products are left to TensorFlow's pool of threads, which then has one: its kernels are oneDNN's,
  twice as fast as those that XLA has for no pool. It holds for the process, if nothing was
  compiled in it before. A pool of several threads, of a process in which TensorFlow has computed
  something before or whose user asks for it, is not used.
  """
  threads = _granted_threads()
  with contextlib.suppress(RuntimeError):  # TensorFlow has made its threads
    if not threads and not tf.config.threading.get_intra_op_parallelism_threads():
      tf.config.threading.set_intra_op_parallelism_threads(1)
      threads = 1
  if threads != 1 and tf.config.threading.get_intra_op_parallelism_threads() != 1:
    xla_flags.set_defaults({'xla_cpu_multi_thread_eigen': 'false'})
  xla_flags.disable_pass('cpu-parallel-task-assigner')


def _granted_threads() -> int:
  """How many threads the environment lets this process have; 0 where it does not say."""
  threads = os.environ.get('TF_NUM_INTRAOP_THREADS', '')
  return int(threads) if threads.isdigit() else 0


def _expanded(names: str) -> list[str]:
  """The names of a list, of `auto` too."""
  if not isinstance(names, str):
    raise ValueError(f"devices={names!r} must be text, such as 'gpu', 'cpu,cpu' or 'auto'.")
  if names == 'auto':
    cores = min(len(os.sched_getaffinity(0)), _granted_threads() or _MOST_CORES, _MOST_CORES)
    return ['gpu'] if tf.config.list_physical_devices('GPU') else ['cpu'] * cores
  return [part.strip().lower() for part in names.split(',')]


def _gpus() -> list:
  """The GPUs, with memory growth on and XLA told where CUDA's libdevice is.

  TF32, which keeps ten bits of a factor's mantissa, is switched off: numbers are to
  agree with other runtimes, and clipped sums that are matrix products are to keep their bound
  (`processes.gradients`). Lower precision is a choice that a model makes.
  """
  for gpu in tf.config.list_physical_devices('GPU'):
    # Already initialised, or cut in logical devices: it stays as it is.
    with contextlib.suppress(RuntimeError, ValueError):
      tf.config.experimental.set_memory_growth(gpu, True)
  tf.config.experimental.enable_tensor_float_32_execution(False)
  _point_xla_to_cuda()
  return tf.config.list_logical_devices('GPU')


def _point_xla_to_cuda() -> None:
  if 'xla_gpu_cuda_data_dir' in os.environ.get('XLA_FLAGS', ''):
    return
  try:
    import nvidia.cuda_nvcc as nvcc  # pylint: disable=g-import-not-at-top # pyright: ignore
  except ImportError:
    return
  folder = next(iter(nvcc.__path__))
  flags = os.environ.get('XLA_FLAGS', '')
  os.environ['XLA_FLAGS'] = f'{flags} --xla_gpu_cuda_data_dir={folder}'.strip()
  # XLA starts ptxas from the path, and looks for libdevice in its data directory.
  os.environ['PATH'] = os.path.join(folder, 'bin') + os.pathsep + os.environ.get('PATH', '')


def free_memory(device: str) -> int:
  """Bytes that are free on a device, as far as is known."""
  if 'GPU' in device:
    free_there = _free_on_gpu(device)
    if free_there is not None:
      return free_there
    # Without NVML: the size of a small GPU.
    name = device.rsplit('/device:', 1)[-1]
    return 16 * 2**30 - tf.config.experimental.get_memory_info(name)['current']
  free = [_kilobytes('/proc/meminfo', 'MemAvailable')]
  for limit, used in _CGROUPS:
    folder = pathlib.Path('/sys/fs/cgroup')
    with contextlib.suppress(OSError, ValueError):  # None here, or no limit.
      free.append(int((folder / limit).read_text()) - int((folder / used).read_text()))
  return max(0, min(free))


def _free_on_gpu(device: str) -> int | None:
  """Bytes that are free on a GPU, of which TensorFlow sees CUDA_VISIBLE_DEVICES; None unknown.

  What this process has used there and freed counts: TensorFlow keeps it for what comes next.
  """
  try:
    import pynvml  # pylint: disable=g-import-not-at-top # pyright: ignore

    pynvml.nvmlInit()
    number = int(device.rsplit(':', 1)[-1])
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    name = visible.split(',')[number].strip() if visible else str(number)
    if name.isdigit():
      handle = pynvml.nvmlDeviceGetHandleByIndex(int(name))
    else:
      handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) + _kept_on_gpu(number)
  except Exception:  # pylint: disable=broad-except
    return None


def _kept_on_gpu(number: int) -> int:
  try:
    memory_info = tf.config.experimental.get_memory_info(f'GPU:{number}')
  except (RuntimeError, ValueError):  # TensorFlow has not used it.
    return 0
  return max(0, memory_info['peak'] - memory_info['current'])


def _kilobytes(path: str, name: str) -> int:
  """A field of a file in /proc, in bytes."""
  lines = pathlib.Path(path).read_text().splitlines()
  return 1024 * next(int(x.split()[1]) for x in lines if x.startswith(name + ':'))


@contextlib.contextmanager
def refused_if_too_large(device: str, size: int = 0) -> Iterator[None]:
  """A request for more memory than is free fails at once.

  On a CPU Linux grants it otherwise, and ends the process when the memory is used. That is until
  the first refusal only: from then on TensorFlow's allocator takes regions as large as the one
  that it was refused, whatever it needs of them. To a GPU an array goes by way of the machine's
  memory.

  Args:
    device: for which the memory is.
    size: what is to be put there, in bytes, which a GPU does not have before it is copied.

  Raises:
    MemoryError: it is more than is free, on the GPU or on the way there.
  """
  global _was_refused
  if 'GPU' in device:
    free_there = _free_on_gpu(device) if size else None
    if size and size > min(free_memory('CPU'), size if free_there is None else free_there):
      raise MemoryError(f'{size} bytes are more than are free')
    yield
    return
  if _was_refused:
    yield
    return
  soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
  limit = _kilobytes('/proc/self/status', 'VmData') + max(_SMALLEST_LIMIT, free_memory(device))
  lower = [x for x in (limit, soft) if x != resource.RLIM_INFINITY]
  resource.setrlimit(resource.RLIMIT_DATA, (min(lower), hard))
  try:
    yield
  except (tf.errors.ResourceExhaustedError, MemoryError):
    _was_refused = True
    raise
  finally:
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def failures_named() -> Iterator[None]:
  """What TensorFlow raises when a device fails becomes one line."""
  try:
    yield
  except FAILURES as error:
    first = str(error).strip().splitlines()[0]
    raise interface.DeviceError(f'the device failed while it computed: {first}') from error


def shared(array: np.ndarray, device: str) -> tf.Tensor:
  """An array on the current device: a room's (`memory.room`) is the same memory on a CPU.

  Args:
    array: nobody may change it afterwards.
    device: the current one, which is asked for what it is.
  """
  is_plain = array.size and array.dtype.kind in 'iuf' and array.dtype.isnative
  if 'CPU' not in device or not is_plain or not memory.is_room(array):
    return tf.convert_to_tensor(array)
  return tf.experimental.dlpack.from_dlpack(np.asarray(_Writeable(array)).__dlpack__())


class _Writeable:
  """A view of an array that has no mark of being read-only, of which DLPack knows nothing."""

  def __init__(self, array: np.ndarray):
    self._array = array
    interface_: dict[str, Any] = dict(array.__array_interface__)
    self.__array_interface__ = interface_ | {'data': (array.ctypes.data, False)}


def gigabytes(size: float) -> str:
  """A number of bytes, for messages."""
  return f'{size / 2**30:.3g} GB'


def working_memory(bytes_per_client: int) -> int:
  """The bytes that a client's work is taken to need, from its data and model in float32."""
  return _WORK * max(1, bytes_per_client)


def clients_per_block(device: str, bytes_per_client: int, num_clients: int) -> int:
  """The default number of clients that are vectorised at once.

  On a CPU one: the client's work stays in the cache. On a GPU the largest power
  of two of clients, up to the cohort and 1,024, whose working memory, taken as 16
  times a client's data and model, fits in a quarter of the free memory.
  """
  if 'GPU' not in device:
    return 1
  fits = free_memory(device) // 4 // working_memory(bytes_per_client)
  limit = max(1, min(fits, num_clients, _GPU_LIMIT))
  return 2 ** int(np.log2(limit))


def padded_size(size: int, limit: int | None = None) -> int:
  """The bucket for a size: with a quarter to spare, up to an eighth of a power of two.

  At least 16, and a multiple of 16. Cohorts of varying size then share one program. Never
  more than `limit`, which is the size of the population, if every client is in the cohort.
  """
  spared = max(1, 1.25 * size)
  step = max(16, 2 ** int(np.ceil(np.log2(spared))) // 8)
  bucket = step * int(np.ceil(spared / step))
  return bucket if limit is None else max(size, min(bucket, limit))
