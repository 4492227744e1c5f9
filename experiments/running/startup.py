"""Keeps TensorFlow's start-up quiet and short."""

import contextlib
import gc
import logging as python_logging
import os
import sys
import warnings
from collections.abc import Iterator

from absl import logging

from runtime import memory
from runtime.quiet import no_stderr


def _is_news(record: python_logging.LogRecord) -> bool:
  return 'retracing' not in record.getMessage()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Silences TensorFlow while it is loaded or set up inside, and its log from then on.

  Some of its notices ("Unable to register cuDNN factory", "Compiled cluster using XLA!")
  do not heed its log level, so file descriptor 2 is turned away for that long. What the
  user set in the environment stays. With --verbosity=1 nothing is silenced.
  """
  if logging.level_debug():
    yield
    return
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  os.environ.setdefault('GRPC_VERBOSITY', 'NONE')
  warnings.filterwarnings('ignore')
  # Programs are traced again where shapes differ, as they must be: no news for a user.
  python_logging.getLogger('tensorflow').addFilter(_is_news)
  with no_stderr():
    yield


@contextlib.contextmanager
def loading() -> Iterator[None]:
  """`quiet`, for what imports TensorFlow, without searches for garbage meanwhile.

  Modules stay: looking through them again and again is a seventh of the time that the imports
  take, and later searches pass them over.
  """
  with quiet():
    if 'tensorflow' in sys.modules or not gc.isenabled():
      yield
      return
    gc.disable()
    try:
      yield
    finally:
      memory.pass_over_what_is_loaded()
      gc.enable()
