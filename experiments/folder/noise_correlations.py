"""The file of a run's fitted noise correlation.

A strategy that is found by optimisation (`privacy.correlated.fitting`) is another one on another
machine, and with another number of threads: the search ends elsewhere. But the rounds of a run are
one mechanism. Were a run continued with other matrices than it was begun with, its later noise
would not go with the noise that is out already, and no sensitivity would hold for both. So the
numbers are kept in the run's folder, `noise_correlation.npy`, and are no secret.

Importing this module does not import TensorFlow.
"""

import hashlib
import io
import pathlib

import numpy as np

from experiments.folder import files

NAME = 'noise_correlation.npy'


def read(folder: str, shape: tuple[int, int]) -> np.ndarray | None:
  """The numbers with which the run in a folder was begun.

  Args:
    folder: the run's; empty if nothing is written.
    shape: that of the strategy asked for.

  Returns:
    None if there are none of that shape.

  Raises:
    ValueError: the file is damaged.
  """
  path = pathlib.Path(folder) / NAME
  if not folder or not path.exists():
    return None
  try:
    numbers = np.load(path, allow_pickle=False)
  except (ValueError, EOFError) as error:
    raise ValueError(f'{path} is damaged: {error}') from error
  return numbers if numbers.shape == shape else None


def write(folder: pathlib.Path, numbers: np.ndarray) -> None:
  """Keeps a strategy's `fitted`."""
  content = io.BytesIO()
  np.save(content, numbers)
  files.write_atomically(folder / NAME, content.getvalue())


def digest(numbers: np.ndarray) -> str:
  """What tells some numbers from others."""
  return hashlib.sha256(np.ascontiguousarray(numbers, np.float64).tobytes()).hexdigest()
