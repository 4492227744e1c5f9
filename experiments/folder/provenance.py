"""Which code made a run: what decides its numbers, beside its configuration and data."""

import functools
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import subprocess
from collections.abc import Mapping
from typing import Any

_PACKAGES = (
  'tensorflow', 'tensorflow-federated', 'tensorflow-privacy', 'dp-accounting', 'numpy', 'scipy',
  'jax',
)  # fmt: skip


_ROOT = pathlib.Path(__file__).resolve().parents[2]
# Whose code decides a run's numbers.
_FOLDERS = ('datasets', 'experiments', 'privacy', 'processes', 'runtime', 'settings', 'tff_models')


def of_this_code() -> dict[str, Any]:
  """`versions` of Python and the packages that compute, a digest of the `source`, `git_commit`."""
  return {'versions': _versions(), 'source': _source(), 'git_commit': _git_commit()}


def is_other(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
  """Whether a record is of other code than `of_this_code`, as far as it says.

  A commit may change nothing that computes, and edits that are not committed have none: the
  source decides where it is known.
  """
  decisive = 'source' if 'source' in earlier else 'git_commit'
  return any(earlier.get(n) and earlier[n] != now[n] for n in ('versions', decisive))


def digest(record: Mapping[str, Any] | None = None) -> str:
  """A short hash of what computes, by a record of `of_this_code`; None for this code's own."""
  record = of_this_code() if record is None else record
  decisive = [record.get('versions'), record.get('source', record.get('git_commit'))]
  return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _source() -> str:
  digest = hashlib.sha256()
  for folder in _FOLDERS:
    for path in sorted((_ROOT / folder).rglob('*.py')):
      digest.update(f'{path.relative_to(_ROOT)}\0'.encode() + path.read_bytes())
  return digest.hexdigest()


def _versions() -> dict[str, str]:
  versions = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return versions


def _git_commit() -> str | None:
  """The commit of this code, '+changes' if it was edited; None outside a checkout."""
  if not (_ROOT / '.git').exists():
    return None
  try:
    commit = _git('rev-parse', 'HEAD')
    changed = _git('status', '--porcelain', '--untracked-files=no')
  except (OSError, subprocess.SubprocessError):
    return None
  return commit + ('+changes' if changed else '')


def _git(*arguments: str) -> str:
  # Without optional locks: a run that is killed must not leave the checkout's index locked.
  command = ['git', '--no-optional-locks', '-C', str(_ROOT), *arguments]
  return subprocess.run(
    command, check=True, capture_output=True, text=True, timeout=10
  ).stdout.strip()
