"""Files that survive a kill: atomic writes, and one owner of a folder."""

import contextlib
import errno
import fcntl
import json
import math
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

_TEMPORARY_PREFIX = '.writing-'
_SECONDS_OF_A_LOOK = 0.01


class WriteError(OSError):
  """Something cannot be written, in one line."""

  def __init__(self, path: pathlib.Path, cause: OSError):
    super().__init__(f'cannot write {path}: {cause.strerror or cause}')
    self._given = path, cause

  def __reduce__(self):  # OSError's would make it of its message alone
    return type(self), self._given


def make_folder(path: pathlib.Path) -> None:
  """Makes a folder, and those above it, unless it is there.

  Raises:
    WriteError: it cannot be made.
  """
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise WriteError(path, error) from error


def check_folder(path: pathlib.Path) -> None:
  """Refuses what `make_folder` would later refuse, and makes nothing.

  Raises:
    WriteError: it cannot be made, or not be written to.
  """
  above = next(one for one in (path, *path.absolute().parents) if one.exists())
  if not above.is_dir():
    raise WriteError(path, NotADirectoryError(errno.ENOTDIR, f'{above} is a file'))
  if not os.access(above, os.W_OK | os.X_OK):
    raise WriteError(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def write_atomically(path: pathlib.Path, content: bytes) -> None:
  """Writes a file so that a reader, at any moment and after any kill, sees all or nothing."""
  with writing_atomically(path) as temporary:
    temporary.write_bytes(content)


@contextlib.contextmanager
def writing_atomically(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a temporary name beside `path`, which takes its place when the block succeeds.

  Raises:
    WriteError: the disk is full, or the folder cannot be written.
  """
  temporary = path.parent / f'{_TEMPORARY_PREFIX}{os.getpid()}-{path.name}'
  try:
    yield temporary
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)
  except OSError as error:
    raise WriteError(path, error) from error
  finally:
    temporary.unlink(missing_ok=True)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file atomically, indented.

  Infinity, which JSON lacks, becomes 'inf', as settings have it; what else is not finite null.
  """
  text = json.dumps(_in_words(value), indent=2, allow_nan=False)
  write_atomically(path, (text + '\n').encode())


def _in_words(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {name: _in_words(v) for name, v in value.items()}
  if isinstance(value, list | tuple):
    return [_in_words(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return 'inf' if value == math.inf else None
  return value


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
  """Waits until no other process or thread changes a file, and keeps them from it.

  It holds for those who lock it, too. The lock is a file of its own beside `path`, which a write
  replaces; nothing is left of it.

  Raises:
    WriteError: the folder cannot be written.
  """
  lock = path.parent / f'.{path.name}.lock'
  try:
    file = _flocked(lock)
  except OSError as error:
    raise WriteError(path, error) from error
  try:
    yield
  finally:
    lock.unlink(missing_ok=True)
    file.close()


def _flocked(lock: pathlib.Path) -> IO[str]:
  while True:
    file = open(lock, 'a')  # noqa: SIM115 - held open on purpose
    fcntl.flock(file, fcntl.LOCK_EX)
    if _is_at(file, lock):
      return file
    file.close()  # its owner has removed it since we opened it


def _is_at(file: IO[str], path: pathlib.Path) -> bool:
  try:
    return os.fstat(file.fileno()).st_ino == path.stat().st_ino
  except FileNotFoundError:
    return False


def remove_temporaries(folder: pathlib.Path) -> None:
  """Removes what a killed process left half-written. Call with the folder locked."""
  for path in folder.rglob(_TEMPORARY_PREFIX + '*'):
    path.unlink(missing_ok=True)


def _sync(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def is_held(folder: pathlib.Path) -> bool:
  """Whether a `FolderLock` holds a folder. Whoever is about to take one is not kept from it.

  Raises:
    OSError: the folder is not there, or not to be seen.
  """
  try:
    file = open(folder / '.lock')  # noqa: SIM115 - closed below
  except FileNotFoundError:
    folder.stat()
    return False
  with file:
    return not _try_flock(file, fcntl.LOCK_SH)


def _try_flock(file: IO[str], kind: int) -> bool:
  try:
    fcntl.flock(file, kind | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


class FolderLock:
  """Holds a folder for this process until it is released or the process ends.

  Attributes:
    made: whether the lock's file was not there before.
  """

  def __init__(self, folder: pathlib.Path):
    """Takes the lock.

    Raises:
      ValueError: another process holds it.
    """
    self._path = folder / '.lock'
    self.made = not self._path.exists()
    self._file = self._open()
    while not _is_at(self._file, self._path):  # its owner has removed it since we opened it
      self._file.close()
      self._file = self._open()
    self._file.truncate(0)
    self._file.write(f'{os.getpid()}\n')
    self._file.flush()

  def _open(self) -> IO[str]:
    file = open(self._path, 'a+')  # noqa: SIM115 - held open on purpose
    try:
      while not _try_flock(file, fcntl.LOCK_EX):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # where somebody only looks (`is_held`)
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(_SECONDS_OF_A_LOOK)
    except BlockingIOError:
      file.seek(0)
      owner = file.read().strip() or 'unknown'
      file.close()
      raise ValueError(
        f'--output_dir={self._path.parent} is in use by another process (pid {owner}); '
        'wait for it or choose another folder.'
      ) from None
    return file

  def release(self, *, remove: bool = False) -> None:
    """Gives the folder free. May be called again.

    Args:
      remove: whether to remove the lock's file, with which the folder may be empty.
    """
    if remove and not self._file.closed:
      self._path.unlink(missing_ok=True)
    self._file.close()
