"""Archives of arrays, `.npz` files, on a disk that may be full."""

import zipfile
from collections.abc import Mapping
from typing import IO

import numpy as np


def write(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
  """Writes what `np.savez` writes.

  Where a write fails, `np.savez` leaves its zip file open, whose destructor prints a traceback once
  `file` is closed; no caller can catch that.

  Raises:
    OSError: it cannot be written.
    ValueError: an array of Python objects.
  """
  with zipfile.ZipFile(file, 'w', allowZip64=True) as archive:
    for name, array in arrays.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as entry:
        np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
