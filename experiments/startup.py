"""Keeps TensorFlow's start-up quiet."""

import contextlib
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(wanted: bool) -> Iterator[None]:
  """Silences TensorFlow while it is imported inside, and its C++ log from then on.

  Some of its notices ("Unable to register cuDNN factory") are written before its log
  level is read, so file descriptor 2 is turned away for that long. What the user set
  in the environment stays.

  Args:
    wanted: False leaves everything as it is.
  """
  if not wanted:
    yield
    return
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  os.environ.setdefault('GRPC_VERBOSITY', 'NONE')
  warnings.filterwarnings('ignore')
  saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(null, 2)
    yield
  finally:
    os.dup2(saved, 2)
    os.close(saved)
    os.close(null)
