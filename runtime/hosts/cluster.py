"""A Ray cluster to work on: another's, or one of this machine that ends with us.

One of our own ('local') listens on the loopback device only. The machines of a cluster see
data and this code at the same paths as the one that gives the command.
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from runtime import memory, temporary
from runtime.hosts.crew import Tell, warn
from runtime.quiet import no_stderr

LOCAL = 'local'
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SECONDS_TO_CONNECT = 10.0
_SECONDS_FOR_ROOM = 60.0  # whoever had the CPUs before may just be ending
_SECONDS_BETWEEN_LOOKS = 1.0
_LOOPBACK = ('localhost', '127.0.0.1')
_HTTP2_HEAD, _HTTP2_SETTINGS = 9, 4  # bytes of a frame's head; the kind that each side sends first
_HTTP2_PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + bytes([0, 0, 0, _HTTP2_SETTINGS] + 5 * [0])
_WORKER_BYTES = 250 * 2**20  # with TensorFlow, before it has any data; what they share apart
_OBJECT_STORE_BYTES = 80 * 2**20  # Ray's least; only messages go through it


def python_path() -> str:
  """PYTHONPATH for a process which runs this code."""
  return os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])


def import_ray(address: str, workers: int = 0) -> Any:
  """Gives the module `ray`.

  Args:
    address: what `--cluster` says; '' where only the clients of a run are spread.
    workers: over how many they are.

  Raises:
    ValueError: the extra `cluster` is not installed.
  """
  asked = f'--cluster={address}' if address else f'--cohort_workers={workers}'
  try:
    import ray
  except ModuleNotFoundError as missing:
    raise ValueError(
      f'{asked} needs Ray, which is not installed: uv sync --extra data --extra cluster.'
    ) from missing
  return ray


@contextlib.contextmanager
def connected(address: str, *, workers: int, flag: str, tell: Tell = warn) -> Iterator[Any]:
  """Connects to a cluster, or starts one, for as long as it is entered; gives the module `ray`.

  Args:
    address: 'local', or that of a cluster: 'ray://host:port', or 'host:port' from a
      machine of the cluster.
    workers: how many workers it has to have room for.
    flag: which says how many, for messages.
    tell: is told what is waited for.

  Raises:
    ValueError: the extra is not installed, there is no cluster at the address, or it is too
      small or others have its CPUs; or this machine's memory does not suffice for one of our own.
  """
  if address == LOCAL:
    memory.check_room(f'--{flag}={workers}', workers, _WORKER_BYTES)
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')
  # Half a minute after its start Ray's core writes to the terminal that it has no dashboard to tell
  # its metrics to. What is an error for a user comes as an exception.
  os.environ.setdefault('RAY_BACKEND_LOG_LEVEL', 'fatal')
  # Ray's own is 15, beside its driver: anything else that runs would hold the workers up.
  os.environ.setdefault('RAY_worker_niceness', '0')
  ray = import_ray(address)
  if address != LOCAL:
    _check_address(ray, address)
  options: dict[str, Any] = dict(
    log_to_driver=False, configure_logging=False,
    runtime_env={'env_vars': {'PYTHONPATH': python_path()}},
  )  # fmt: skip
  folder = None
  if address == LOCAL:
    folder = temporary.Folder('ray-')
    options |= dict(
      num_cpus=max(workers, os.cpu_count() or 1), include_dashboard=False,
      _node_ip_address='127.0.0.1', object_store_memory=_OBJECT_STORE_BYTES, _temp_dir=folder.name,
    )  # fmt: skip
  else:
    options['address'] = address
  on_sigterm = signal.getsignal(signal.SIGTERM)
  try:
    try:
      with no_stderr(), _deaf_to_sigterm():  # the core says which level it logs at
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
      why = str(error) or f'no Ray cluster answers ({type(error).__name__})'
      raise ValueError(f'--cluster={address}: {why}') from error
    _take_back(on_sigterm)
    _await_room(ray, workers, flag, tell)
    yield ray
  finally:
    ray.shutdown()
    if folder is not None:
      folder.cleanup()
    _take_back(on_sigterm)


def _await_room(ray: Any, workers: int, flag: str, tell: Tell) -> None:
  """Waits a while for CPUs that others have: Ray itself would wait for ever, and say nothing."""
  total = ray.cluster_resources().get('CPU', 0)
  if total < workers:
    raise ValueError(
      f'--{flag}={workers}: the cluster has {total:.0f} CPUs, and each worker takes one.'
    )
  until, told = time.monotonic() + _SECONDS_FOR_ROOM, False
  while ray.available_resources().get('CPU', 0) < workers:
    if time.monotonic() > until:
      raise ValueError(
        f'--{flag}={workers}: each takes a CPU of the cluster, and after {_SECONDS_FOR_ROOM:.0f} s '
        f'only {free_of(ray, "CPU")}.'
      )
    if not told:
      tell(f'--{flag}={workers}: waiting for so many CPUs of the cluster; {free_of(ray, "CPU")}')
    told = True
    time.sleep(_SECONDS_BETWEEN_LOOKS)


def free_of(ray: Any, resource: str) -> str:
  """How much of a cluster's resource is free, in words."""
  free, total = (
    found.get(resource, 0) for found in (ray.available_resources(), ray.cluster_resources())
  )
  return f'{free:g} of its {total:g} {resource}s are free'


@contextlib.contextmanager
def _deaf_to_sigterm() -> Iterator[None]:
  """Processes that are started meanwhile do not hear the signal, nor do those that they start.

  Schedulers send it to every process of a job, and our own has a round to finish with theirs,
  which end with ours. (Ray does this for SIGINT.)
  """
  before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_back(on_sigterm: Any) -> None:
  """Ray has set a handler of its own."""
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGTERM, on_sigterm)


def check_form(address: str) -> tuple[str, int]:
  """Host and port of a cluster's address; of `LOCAL` this machine, and no port.

  Raises:
    ValueError: it has another form.
  """
  if address == LOCAL:
    return _LOOPBACK[0], 0
  found = re.fullmatch(r'(?:ray://)?([^/:]+):(\d+)', address)
  if not found:
    raise ValueError(f'--cluster={address} must be local, ray://host:port or host:port.')
  return found[1], int(found[2])


def _check_address(ray, address: str) -> None:
  """Refuses an address at which nothing answers: Ray itself would try for many minutes."""
  host, port = check_form(address)
  if host in _LOOPBACK and not address.startswith('ray://'):
    host = ray.util.get_node_ip_address()  # where Ray looks for this machine's own cluster
  try:
    connection = socket.create_connection((host, port), timeout=_SECONDS_TO_CONNECT)
  except OSError as error:
    raise ValueError(f'--cluster={address}: nothing answers at {host}:{port} ({error}).') from error
  with connection:
    if os.environ.get('RAY_USE_TLS', '0') == '0' and not _is_http2(connection):
      raise ValueError(f'--cluster={address}: what listens at {host}:{port} is no Ray cluster.')


def _is_http2(connection: socket.socket) -> bool:
  """Whether the other side speaks HTTP/2, as all of gRPC and so of Ray does."""
  with contextlib.suppress(OSError):
    connection.sendall(_HTTP2_PREFACE)
    head = connection.recv(_HTTP2_HEAD, socket.MSG_WAITALL)
    return len(head) == _HTTP2_HEAD and head[3] == _HTTP2_SETTINGS
  return False
