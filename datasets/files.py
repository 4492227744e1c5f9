"""Finding, fetching and checking the files that data sets are made of.

A file is looked for in the folder the user named (`--data_dir`), in the folder
of the environment variable PFL_DATA_DIR, and in the cache folder. If none has
it, it is fetched from its public address into the first of these. What is
fetched is written beside its place and renamed when it is whole and its SHA-256
is right, so a file that has its name is a good file.
"""

import contextlib
import dataclasses
import functools
import hashlib
import http.client
import lzma
import os
import pathlib
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO

import numpy as np

from runtime import archives

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFile:
  """A file of a data set.

  Attributes:
    name: its name in the data folder.
    url: its public address; None if it has to be put there by hand. A `.lzma`
      address is unpacked on the way.
    sha256: the digests of its known good versions, after unpacking. Empty if it
      is not fixed which bytes it has.
    how: how a user gets it, one sentence; needed where there is no url.
    instead: files which serve in its place.
  """

  name: str
  url: str | None = None
  sha256: tuple[str, ...] = ()
  how: str = ''
  instead: 'tuple[DataFile, ...]' = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalFile:
  """A file which is there, and its SHA-256 ('' where it was not computed)."""

  path: pathlib.Path
  sha256: str


def get(file: DataFile, data_dir: str | os.PathLike | None, *, digest: bool = True) -> LocalFile:
  """Finds a file on this machine or fetches it.

  Args:
    file: what is looked for.
    data_dir: the folder that the user named, or None.
    digest: whether to compute the SHA-256 of a file which has no fixed one; files
      of many gigabytes go without.

  Raises:
    FileNotFoundError: it is not here and could not be fetched.
    ValueError: it is here, or came, with wrong contents.
  """
  path = find(file, data_dir)
  if path is None:
    path = folders(data_dir)[0] / file.name
    _download(file, path)
  if not digest and not file.sha256:
    return LocalFile(path=path, sha256='')
  stat = path.stat()
  sha256 = _sha256(path, stat.st_size, stat.st_mtime_ns)
  _check(file, path, sha256)
  return LocalFile(path=path, sha256=sha256)


def find(file: DataFile, data_dir: str | os.PathLike | None) -> pathlib.Path | None:
  """Where the file is on this machine, or None; never fetches."""
  for folder in folders(data_dir):
    if (folder / file.name).is_file():
      return folder / file.name
  return None


def cache_folder() -> pathlib.Path:
  """Where data that were fetched or made are kept."""
  root = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(root) / 'private_federated_learning'


def cached_arrays(
  name: str, make: Callable[[], Mapping[str, np.ndarray]]
) -> Mapping[str, np.ndarray]:
  """Arrays which are slow to make from a file: made once and kept in the cache folder.

  Args:
    name: says what they are made of, with its SHA-256, so that it is never stale.
    make: makes them where the cache has not got them.
  """
  path = cache_folder() / f'{name}.npz'
  # One that was cut short is made again.
  damage = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
  with contextlib.suppress(*damage), np.load(path, allow_pickle=False) as arrays:
    return dict(arrays)
  made = make()
  # A cache that cannot be written to only costs time.
  with contextlib.suppress(OSError), _whole_file(path) as stream:
    archives.write(stream, made)
  return made


@contextlib.contextmanager
def _whole_file(path: pathlib.Path) -> Iterator[IO[bytes]]:
  """A file that gets its name when it is whole; an exception leaves nothing, and no new folder."""
  made = [folder for folder in path.parents if not folder.exists()]
  path.parent.mkdir(parents=True, exist_ok=True)
  handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
  try:
    with os.fdopen(handle, 'wb') as stream:
      yield stream
    os.replace(temporary, path)
  except BaseException:
    pathlib.Path(temporary).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else has put something there
      for folder in made:
        folder.rmdir()
    raise


def folders(data_dir: str | os.PathLike | None) -> list[pathlib.Path]:
  """Where data files are looked for; what is fetched goes to the first."""
  named = [data_dir, os.environ.get('PFL_DATA_DIR')]
  return [pathlib.Path(folder).expanduser() for folder in named if folder] + [cache_folder()]


@functools.lru_cache(maxsize=32)
def _sha256(path: pathlib.Path, size: int, modified: int) -> str:
  del size, modified  # They make another cache entry when the file changes.
  with open(path, 'rb') as stream:
    return hashlib.file_digest(stream, 'sha256').hexdigest()


def _check(file: DataFile, path: pathlib.Path, sha256: str):
  if file.sha256 and sha256 not in file.sha256:
    raise ValueError(
      f'{path} has SHA-256 {sha256}, expected {" or ".join(file.sha256)}:'
      ' it was cut short or is another version; remove it and try again.'
    )


def _download(file: DataFile, path: pathlib.Path):
  place = f'{file.name} is not in {path.parent}'
  if file.url is None:
    raise FileNotFoundError(f'{place}; put it there or name its folder by --data_dir. {file.how}')
  try:
    with _whole_file(path) as target:
      sha256 = _fetch(file.url, target)
      if file.sha256 and sha256 not in file.sha256:
        raise ValueError(
          f'{file.url} came with SHA-256 {sha256}, expected {" or ".join(file.sha256)};'
          f' nothing was kept. Get {file.name} another way and put it into {path.parent}.'
        )
  except (OSError, http.client.HTTPException, EOFError, lzma.LZMAError) as error:
    raise FileNotFoundError(
      f'{place} and could not be fetched from {file.url} ({error});'
      f' put {file.name} into that folder or name another by --data_dir. {file.how}'.rstrip()
    ) from error


def _fetch(url: str, target: IO[bytes]) -> str:
  """Copies an address into a file and returns the SHA-256 of what was written."""
  unpack = lzma.LZMADecompressor() if url.endswith('.lzma') else None
  digest, received = hashlib.sha256(), 0
  with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as source:
    expected = source.headers.get('Content-Length')
    while chunk := source.read(_CHUNK):
      received += len(chunk)
      data = unpack.decompress(chunk) if unpack else chunk
      digest.update(data)
      target.write(data)
  if (expected is not None and received != int(expected)) or (unpack and not unpack.eof):
    raise EOFError(f'cut short: {received} bytes came of {expected or "a longer file"}')
  return digest.hexdigest()
