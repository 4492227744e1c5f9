"""Lines that a library's own C++ code writes to the terminal, turned away."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def no_stderr() -> Iterator[None]:
  """Turns file descriptor 2 away for as long as it is entered; exceptions pass as ever."""
  saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(null, 2)
    yield
  finally:
    os.dup2(saved, 2)
    os.close(saved)
    os.close(null)
