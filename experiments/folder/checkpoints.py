"""Checkpoints: trees of arrays in ordinary `.npz` files which know their own hash.

A checkpoint is written at once or not at all, holds no pickle, and carries the
SHA-256 of its content in the zip archive's comment, so that a file that was cut
short or altered is found before anything of it is used. The last two are kept.

Where cohort workers have the clients' states, each writes its own to a file in a folder beside the
checkpoint, a *shard*, and the checkpoint names them all with their hashes. It is written after
them: a shard counts for nothing before.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import socket
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from experiments.folder import files
from runtime import archives, records
from runtime.noise_key import SECRETS

KEPT = 2
CONSTANT = frozenset({'attributes', 'hyperparameters'})  # names of what never changes in a run
UNCHANGING = CONSTANT | SECRETS  # of a client's state, on its first level
_DIGEST_LENGTH = 64
_COMMENT_LENGTH = struct.pack('<H', _DIGEST_LENGTH)
_BYTES_AT_ONCE = 2**20
_CLIENT_RECORDS = 'client_records'  # in the names of arrays, before a file's
_NAME = re.compile(r'round_(\d{8})\.npz')


class CheckpointError(ValueError):
  """A checkpoint that cannot be used, and why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
  """A run's state after some rounds.

  Attributes:
    rounds: rounds done.
    arrays: flat name -> array.
    facts: small JSON values, such as how many rows of metrics belong to it.
    shards: files with the clients' states, if these are not among the arrays.
  """

  rounds: int
  arrays: Mapping[str, np.ndarray]
  facts: Mapping[str, Any]
  shards: 'Shards | None' = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
  """Files with the clients' states, in the order of the clients.

  Attributes:
    folder: where they are.
    files: each one's `name`, its `first` client, its number of `clients`, and its `sha256`.
  """

  folder: str
  files: Sequence[Mapping[str, Any]]

  def restored(self, first: int, template: Any) -> Any:
    """The states of some clients, from `first` on, as many as the template has; see `restore`.

    Raises:
      CheckpointError: a client is in no shard, this machine does not see one, or as `restore` does.
      OSError: a shard cannot be read.
    """
    count = _num_rows(template)
    parts: list[Mapping[str, np.ndarray]] = []
    at = first
    for shard in self.files:
      start, end = shard['first'], shard['first'] + shard['clients']
      if start <= at < end and at < first + count:
        own = slice(at - start, min(end, first + count) - start)
        arrays = self._read(shard['name'])
        parts.append({name: array[own] for name, array in arrays.items()})
        at = start + own.stop
    if at != first + count:
      raise CheckpointError(f'it has no states of client {at}')
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return restore(template, joined, 'clients')

  def _read(self, name: str) -> dict[str, np.ndarray]:
    path = pathlib.Path(self.folder) / name
    try:
      return _read(path)
    except FileNotFoundError as error:  # the driver has seen it
      raise CheckpointError(
        f'--output_dir={path.parents[2]}: {socket.gethostname()} does not see {path}, where the '
        'states of its clients are; continue where every worker sees that folder, or in one '
        'process (--cohort_workers=0)'
      ) from error

  def check(self) -> None:
    """Raises a `CheckpointError` unless every shard is there and undamaged."""
    for shard in self.files:
      path = pathlib.Path(self.folder) / shard['name']
      if not path.exists():
        raise CheckpointError(f'its part {path.name} of {path.parent.name} is gone')
      if _checked_digest(path) != shard['sha256']:
        raise CheckpointError(f'its part {path.name} of {path.parent.name} is another')


def flatten(tree: Any, prefix: str = '') -> dict[str, np.ndarray]:
  """Leaves of nested mappings by path, 'server/model/weights': all but the secrets."""
  return {path: np.asarray(leaf) for path, leaf in _leaves(tree, prefix) if not _is_secret(path)}


def restore(template: Any, arrays: Mapping[str, np.ndarray], prefix: str = '') -> Any:
  """A tree like `template` with the leaves of `flatten`, and with its own secrets.

  What never changes in a run (the clients' attributes, such as their noise multipliers,
  and the hyper-parameters) must equal the template's: else the rest of the run would use
  other noise than the plan, made anew from the flags, accounts for.

  Raises:
    CheckpointError: a leaf is missing, too many, has another shape or dtype, or should not
      have changed.
  """
  expected = flatten(template, prefix)
  found = {name for name in arrays if name == prefix or name.startswith(prefix + '/')}
  if set(expected) != found:
    odd = sorted(set(expected) ^ found)[0]
    raise CheckpointError(f'it was made by another method or model ({odd} does not match)')
  for path, leaf in expected.items():
    if arrays[path].shape != leaf.shape or arrays[path].dtype != leaf.dtype:
      raise CheckpointError(
        f'it was made with other data or another model: {path} has shape {arrays[path].shape} '
        f'and type {arrays[path].dtype}, expected {leaf.shape} and {leaf.dtype}'
      )
    constant = CONSTANT & set(path.split('/'))
    if constant and not np.array_equal(arrays[path], leaf):
      raise CheckpointError(
        f'it was made with other settings: {path} differs from what the flags, the budget file '
        'and this version of the project give now'
      )
  return _rebuild(template, arrays, prefix)


def save(folder: pathlib.Path, checkpoint: Checkpoint) -> pathlib.Path:
  """Writes `round_NNNNNNNN.npz` and removes all but the last two."""
  shards = checkpoint.shards
  named = None
  if shards is not None:
    named = {'folder': pathlib.Path(shards.folder).name, 'files': list(shards.files)}
  facts = {'rounds': checkpoint.rounds, **checkpoint.facts, 'shards': named}
  folder.mkdir(exist_ok=True)
  path = folder / f'round_{checkpoint.rounds:08d}.npz'
  text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
  _write(path, {'facts': text, **checkpoint.arrays})
  for old in list_files(folder)[:-KEPT]:
    old.unlink()
  _remove_shards(folder, keep=list_files(folder))
  _remove_client_records(folder, keep=list_files(folder))
  return path


def client_records(checkpoint: Checkpoint) -> dict[str, dict[str, np.ndarray]]:
  """Where the clients' states on disk are, as `runtime.records` has it; empty if they are not.

  Raises:
    CheckpointError: it is of a version that had them otherwise.
  """
  result: dict[str, dict[str, np.ndarray]] = {}
  for path, array in checkpoint.arrays.items():
    first, *rest = path.split('/')
    if first == _CLIENT_RECORDS and len(rest) != 2:
      raise CheckpointError(
        "the checkpoint is of an earlier version, which had all clients' states in one file; begin "
        'anew in another --output_dir'
      )
    if first == _CLIENT_RECORDS:
      result.setdefault(rest[0], {})[rest[1]] = array
  return result


def new_shards(folder: pathlib.Path, rounds: int) -> pathlib.Path:
  """Makes a folder for the shards of a checkpoint that is to be written, with a name of its own."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'round_{rounds:08d}.{secrets.token_hex(4)}.shards'
  path.mkdir()
  return path


def save_shard(first: int, states: Any, *, folder: str) -> dict[str, Any] | None:
  """Writes the states of some clients; run by whoever has them.

  Args:
    first: the first client.
    states: a tree with leaves [n, ...].
    folder: from `new_shards`.

  Returns:
    What `Shards.files` has of it; None where there is no such folder, as on another machine.
  """
  path = pathlib.Path(folder) / f'clients_{first:010d}.npz'
  if not path.parent.is_dir():
    return None
  digest = _write(path, flatten(states, 'clients'))
  return {'name': path.name, 'first': first, 'clients': _num_rows(states), 'sha256': digest}


def _num_rows(tree: Any) -> int:
  return len(next(leaf for _, leaf in _leaves(tree, '')))


def _remove_client_records(folder: pathlib.Path, keep: Sequence[pathlib.Path]) -> None:
  """Removes the files of clients' states that no checkpoint of those to keep names."""
  if not client_states(folder).is_dir():
    return
  names = set()
  for path in keep:
    try:
      with np.load(path, allow_pickle=False) as archive:
        found = [name.split('/') for name in archive.files]
    except (ValueError, OSError, zipfile.BadZipFile):  # what it names is not known
      return
    names |= {rest[0] for first, *rest in found if first == _CLIENT_RECORDS}
  records.remove_others(client_states(folder), names)


def client_states(folder: pathlib.Path) -> pathlib.Path:
  """The folder of the clients' states with `--client_states=disk`, beside the checkpoints."""
  return folder / 'client_states'


def _remove_shards(folder: pathlib.Path, keep: Sequence[pathlib.Path]) -> None:
  """Removes the shards that no checkpoint of those to keep names."""
  found = set(folder.glob('round_*.shards'))
  for path in keep if found else ():
    # What cannot be read is found when it is needed; its shards stay until then.
    try:
      with np.load(path, allow_pickle=False) as archive:
        named = json.loads(archive['facts'].tobytes()).get('shards')
    except (ValueError, KeyError, OSError, zipfile.BadZipFile):
      return
    if named:
      found.discard(folder / named['folder'])
  for path in found:
    shutil.rmtree(path, ignore_errors=True)


def _write(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> str:
  """Writes arrays with their hash, and returns it."""
  # Straight to the file: personal models of many clients would not fit into memory again.
  with files.writing_atomically(path) as temporary, open(temporary, 'w+b') as file:
    archives.write(file, arrays)
    size = file.seek(0, os.SEEK_END) - len(_COMMENT_LENGTH)  # of the comment, empty so far
    digest = _digest(file, size)
    file.seek(size)
    file.write(_COMMENT_LENGTH + digest)
  return digest.decode()


def load(path: pathlib.Path) -> Checkpoint:
  """Reads a checkpoint, checking its hash first.

  Raises:
    CheckpointError: the file is damaged.
  """
  _checked_digest(path)
  arrays = _read(path)
  try:
    facts = json.loads(arrays.pop('facts').tobytes())
    named, shards = facts.pop('shards', None), None
    if named:
      shards = Shards(folder=str((path.parent / named['folder']).resolve()), files=named['files'])
    checkpoint = Checkpoint(rounds=facts.pop('rounds'), arrays=arrays, facts=facts, shards=shards)
  except (ValueError, KeyError) as error:
    raise CheckpointError(f'it is no checkpoint ({error})') from error
  if shards is not None:
    shards.check()
  return checkpoint


def _checked_digest(path: pathlib.Path) -> str:
  """The hash of a file that `_write` has written.

  Raises:
    CheckpointError: it is damaged.
  """
  with open(path, 'rb') as file:
    size = file.seek(0, os.SEEK_END) - len(_COMMENT_LENGTH) - _DIGEST_LENGTH
    digest = _digest(file, size)
    file.seek(max(0, size))
    if file.read() != _COMMENT_LENGTH + digest:
      raise CheckpointError('it is damaged (its SHA-256 does not match)')
  return digest.decode()


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
  try:
    with np.load(path, allow_pickle=False) as archive:
      return {name: archive[name] for name in archive.files}
  except (ValueError, KeyError, zipfile.BadZipFile) as error:
    raise CheckpointError(f'it is no checkpoint ({error})') from error


def _digest(file: BinaryIO, size: int) -> bytes:
  """SHA-256, in hexadecimal, of the first `size` bytes."""
  file.seek(0)
  digest = hashlib.sha256()
  while size > 0 and (part := file.read(min(size, _BYTES_AT_ONCE))):
    digest.update(part)
    size -= len(part)
  return digest.hexdigest().encode()


def list_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """The checkpoints of a folder, the oldest first."""
  return sorted(p for p in folder.glob('round_*.npz') if _NAME.fullmatch(p.name))


def rounds_of(path: pathlib.Path) -> int:
  """The rounds that a checkpoint's name says."""
  found = _NAME.fullmatch(path.name)
  assert found is not None
  return int(found.group(1))


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
  if isinstance(tree, Mapping):
    for name, child in tree.items():
      yield from _leaves(child, f'{path}/{name}' if path else name)
  else:
    yield path, tree


def _rebuild(template: Any, arrays: Mapping[str, np.ndarray], path: str) -> Any:
  if isinstance(template, Mapping):
    return collections.OrderedDict(
      (name, _rebuild(child, arrays, f'{path}/{name}' if path else name))
      for name, child in template.items()
    )
  return np.asarray(template) if _is_secret(path) else arrays[path]


def _is_secret(path: str) -> bool:
  return not SECRETS.isdisjoint(path.split('/'))
