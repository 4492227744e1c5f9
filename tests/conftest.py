"""For all tests: quiet TensorFlow, one device, no worker left behind, slow files first."""

import atexit
import collections
import gc
import os
import pathlib

import pytest

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
_RUNTIME = pathlib.Path(__file__).parent / 'runtime'
_OPTIMISATION = 'xla_backend_optimization_level'
gc.disable()  # until everything is imported, which stays


def pytest_addoption(parser):
  parser.addoption(
    '--kills', type=int, default=4, help='How often tests/trust/test_kills.py kills real runs.'
  )
  parser.addoption(
    '--exhaustive', action='store_true', help='Run the tests that are marked exhaustive, too.'
  )
  parser.addoption(
    '--device', default='cpu', choices=('cpu', 'gpu'),
    help='Where the XLA runtime computes unless a test names a device.',
  )  # fmt: skip


def pytest_configure(config):
  """Slow tests compile without LLVM's optimisation, which takes longer there than it saves.

  XLA's own passes run as for users. All other tests, and --exhaustive, compile as users do.
  """
  if config.getoption('--device') == 'gpu':
    _compute_on_a_gpu()
  else:
    os.environ.setdefault('CUDA_VISIBLE_DEVICES', '')
  flags = os.environ.get('XLA_FLAGS', '')
  chosen = _OPTIMISATION in flags or flags[:1] not in ('', '-')  # the name of a file with flags
  slow = config.getoption('markexpr').startswith('slow')
  if slow and not config.getoption('--exhaustive') and not chosen:
    os.environ['XLA_FLAGS'] = f'{flags} --{_OPTIMISATION}=0'.strip()


def _compute_on_a_gpu():
  """Makes a GPU the device of what names none; workers share it."""
  os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
  import tensorflow as tf

  if not tf.config.list_physical_devices('GPU'):
    raise pytest.UsageError('--device=gpu: TensorFlow sees no GPU; is the gpu extra installed?')
  import runtime
  from runtime.xla import context
  from runtime.xla import runtime as xla_runtime

  for made in (context.XlaContext.__init__, xla_runtime.XlaRuntime.__init__):
    made.__kwdefaults__['devices'] = 'gpu'
  create = runtime.create

  def create_there(name='xla', *, devices=None, **settings):
    there = devices or ('gpu' if name == 'xla' else 'cpu')
    return create(name, devices=there, **settings)

  runtime.create = create_there


def pytest_ignore_collect(collection_path, config):
  """Reads no file of which `-m` runs no test: all of them take as long as many tests."""
  chosen = config.getoption('markexpr')
  is_file = collection_path.suffix == '.py'
  if chosen == 'slow and runtime' and is_file and _RUNTIME not in collection_path.parents:
    return True
  return True if chosen == 'slow and not runtime' and collection_path == _RUNTIME else None


def _is_exhaustive(item) -> bool:
  mark = item.get_closest_marker('exhaustive')
  if mark is None:
    return False
  kept = mark.kwargs.get('but', ())
  return not kept or item.callspec.id not in kept


def pytest_collection_modifyitems(config, items):
  """Files with the most slow tests first: workers share files, and none waits for a long one."""
  for item in items:
    if _RUNTIME in item.path.parents:
      item.add_marker('runtime')
  if not config.getoption('--exhaustive'):
    left_out = [item for item in items if _is_exhaustive(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not _is_exhaustive(item)]
  if config.getoption('--device') == 'gpu':
    skipped = pytest.mark.skip(reason='of a CPU')
    for item in items:
      if item.get_closest_marker('cpu') is not None:
        item.add_marker(skipped)
  slow, order = collections.Counter(), {}
  for item in items:
    slow[item.path] += item.get_closest_marker('slow') is not None
    order.setdefault(item.path, len(order))
  items.sort(key=lambda item: (-slow[item.path], order[item.path]))


def pytest_collection_finish():
  gc.freeze()
  gc.set_threshold(100_000, 20, 20)  # Tracing makes much that stays.
  gc.enable()
  atexit.register(gc.unfreeze)  # before what is frozen is finalised


@pytest.fixture(scope='session')
def native():
  """One native runtime for all tests of a process: its worker takes seconds to start."""
  import runtime  # with TensorFlow, which most tests need not wait for

  created = runtime.create('native')  # not entered: TFF's default context stays what it is
  yield created
  created.close()
