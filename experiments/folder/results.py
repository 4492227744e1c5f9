"""A run's folder: what is in it, who owns it, and how it is continued.

  config.json      flags, versions, git commit, checksums of the data
  metrics.parquet  one row per round, split, client or group, and metric
  privacy.json     the guarantee of the rounds run so far, in numbers and words
  summary.json     the last metrics, timings, memory
  tensorboard/     the same curves as events
  checkpoints/     the last two, without the noise key
  noise_correlation.npy   the fitted numbers of correlated noise; see `noise_correlations`
  .noise_key       the secret of a private run that is not finished; see `noise_keys`
  figures/         metric and epsilon against rounds

Every file is written at once or not at all. Importing this module does not import
TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import platform
import shutil
from collections.abc import Mapping
from typing import Any

from experiments.config import continuing, launcher
from experiments.config.experiment import ExperimentConfig
from experiments.folder import files, noise_correlations, noise_keys, provenance

_RESULTS = ('metrics.parquet', 'privacy.json', 'summary.json', 'checkpoints')
_SPACE_NEEDED = 16 * 2**20  # bytes that must be free before a run is started


def check_contents(where: str, earlier: Mapping[str, str], now: Mapping[str, str]) -> None:
  """Refuses files that say something else than when what goes on was begun.

  Args:
    where: the folder's flag.
    earlier: digests by name, as they were; what is not among them is not known.
    now: as they are.

  Raises:
    ValueError: naming the flag.
  """
  for name in earlier.keys() & now.keys():
    if earlier[name] != now[name]:
      raise ValueError(
        f'{where} was begun with another content of the file of --{name}. Put back what it said '
        f'({earlier[name]} by its digest; it is {now[name]}), or choose another folder.'
      )


class RunFolder:
  """One run's folder, held by this process until `close`.

  Attributes:
    config: the run's configuration.
    path: where the folder is.
    fingerprint: of the configuration, as the run was begun.
    resuming: whether a run that was begun here is continued.
    begun: whether a round of the run has been run, here or before. A folder in which none has been
      is left as it was found.
    begun_by_other_code: whether it was begun by other code or packages; known from
      `record_environment` on.
    was_killed: whether rounds of it may be lost that have been run; known likewise.
    begun_with: digest of the code with which its rounds were begun; known likewise.
    begun_contents: digest of the contents with which they were begun, which a process may know more
      or less of when they go on; known likewise.
    noise_key_fingerprint: of the noise key with which its rounds were begun, None where there is
      none; known likewise.
  """

  def __init__(self, config: ExperimentConfig):
    """Opens `config.output_dir` for a new run, or to continue the one in it.

    Raises:
      ValueError: another process uses it, it holds another run, or this run and
        `config.resume` is false, or something else.
      OSError: it cannot be written.
    """
    self.config = config
    self.begun_by_other_code = self.was_killed = False
    self.noise_key_fingerprint: str | None = None
    self.fingerprint, self.begun_with, self.begun_contents = config.fingerprint, '', ''
    self.begun = False
    self._is_new = False  # its files are ours alone
    self.path = pathlib.Path(config.output_dir)
    if self.path.exists() and not self.path.is_dir():
      raise ValueError(f'--output_dir={self.path} is a file, not a folder.')
    self._made = not self.path.exists()
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      self._lock = files.FolderLock(self.path)
    except OSError as error:
      raise files.WriteError(self.path, error) from error
    try:
      self.resuming = self.begun = self._check_owner()
      self._is_new = not self.resuming
      free = shutil.disk_usage(self.path).free
      if free < _SPACE_NEEDED:
        raise ValueError(
          f'--output_dir={self.path} is on a disk with {free / 2**20:.1f} MiB free; '
          f'at least {_SPACE_NEEDED // 2**20} MiB are needed.'
        )
      files.remove_temporaries(self.path)
      if not self.resuming:
        noise_keys.forget(self.path)
        _remove(self.path / noise_correlations.NAME)
        record = {'config': config.to_json(), 'file_contents': config.file_contents}
        files.write_json(self.path / 'config.json', {**record, 'working_folder': os.getcwd()})
    except BaseException:
      refused = not (self._is_new or self.begun)  # as somebody else's, which is left as it was
      self._lock.release(remove=refused and self._lock.made)
      self.close()
      raise

  def _check_owner(self) -> bool:
    """Whether a run is to be continued here; refuses where nothing may be done."""
    where = f'--output_dir={self.path}'
    record = self.read_json('config.json')
    if record is None:
      others = sorted(p.name for p in self.path.iterdir() if not p.name.startswith('.'))
      if others:
        raise ValueError(f'{where} holds {others[0]} and no run; choose an empty or a new folder.')
      return False
    if not _is_of_a_run(record):
      raise ValueError(
        f'{where} holds a config.json that is not of a run; choose an empty or a new folder.'
      )
    if not self._has_rounds(record):
      return False  # a run that was killed before its first round
    try:
      earlier = ExperimentConfig.from_json(_settings(record))
    except (KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f'{where} holds a run with a configuration that cannot be read: {error}'
      ) from error
    # A run may end on another device than it began on, which may have gone.
    differences = self.config.differences(dataclasses.replace(earlier, device=self.config.device))
    if differences:
      raise ValueError(
        f'{where} holds a run with another configuration: {"; ".join(differences)}. '
        'Choose another folder.'
      )
    check_contents(where, record.get('file_contents', {}), self.config.file_contents)
    self.fingerprint = record.get('fingerprint', self.fingerprint)
    if not self.config.resume:
      raise ValueError(
        f'{where} holds this run already; continue it with {launcher.resume(self.path)} or choose '
        'another folder.'
      )
    return True

  def _has_rounds(self, record: Mapping[str, Any]) -> bool:
    """Whether a round of the run in this folder may have been run."""
    return 'running' in record or any((self.path / name).exists() for name in _RESULTS)

  def record_environment(
    self,
    checksums: Mapping[str, str],
    facts: Mapping[str, Any],
    contents: Mapping[str, str] | None = None,
  ) -> None:
    """Completes config.json.

    Args:
      checksums: SHA-256 of the data files by name.
      facts: further things worth knowing, such as the runtime's description.
      contents: digests of what else makes the run what it is; see `Experiment.contents`.

    Raises:
      ValueError: the run was begun with other data, another model, or other code of the user's; or
        rounds of it may be lost which this code cannot be trusted to replay.
    """
    record = self.read_json('config.json') or {}
    code = provenance.of_this_code()
    self.begun_by_other_code = provenance.is_other(record, code)
    self.was_killed = bool(record.get('running'))
    self.noise_key_fingerprint = record.get('noise_key_fingerprint')
    earlier_code = record if self.begun and 'versions' in record else code
    self.begun_with = record.get('begun_with') or provenance.digest(earlier_code)
    if self.was_killed and self.begun_by_other_code and self.config.privacy != 'none':
      raise ValueError(
        f'--output_dir={self.path} holds a private run that was killed under another version of '
        'the code or its packages (see its config.json). Rounds after its last checkpoint have '
        'spent privacy, and may not be replayed bit for bit by this version. Continue with that '
        'version, or choose another folder.'
      )
    contents = dict(contents or {})
    earlier_contents = record.get('contents', contents) if self.begun else contents
    self.begun_contents = record.get('begun_contents') or digest(earlier_contents)
    _check_record(f'--output_dir={self.path}', record, checksums, contents)
    files.write_json(
      self.path / 'config.json',
      {
        'config': self.config.to_json(),
        'file_contents': self.config.file_contents,
        'working_folder': os.getcwd(),
        'contents': {**record.get('contents', {}), **contents},
        'fingerprint': self.fingerprint,
        'data_checksums': dict(checksums),
        **code,
        'begun_with': self.begun_with,
        'begun_contents': self.begun_contents,
        'platform': platform.platform(),
        **facts,
        **self._of_rounds(),
      },
    )

  def begin(self, noise_key_fingerprint: str | None = None) -> None:
    """Records that a round is being run, before anybody sees anything of it.

    Args:
      noise_key_fingerprint: what tells the key from which the round is drawn from others.
    """
    if not self.begun:
      self.begun, self.noise_key_fingerprint = True, noise_key_fingerprint
      record = self.read_json('config.json') or {}
      files.write_json(self.path / 'config.json', {**record, **self._of_rounds()})

  def _of_rounds(self) -> dict[str, Any]:
    """What config.json says once a round is being run."""
    key = self.noise_key_fingerprint
    known = {} if key is None else {'noise_key_fingerprint': key}
    return {'running': True, **known} if self.begun else {}

  def rest(self) -> None:
    """Records that every round that was run is in the last checkpoint or the results."""
    record = self.read_json('config.json') or {}
    files.write_json(self.path / 'config.json', {**record, 'running': False})

  def read_json(self, name: str) -> dict[str, Any] | None:
    """A JSON file of the folder, None if there is none.

    Raises:
      ValueError: it is damaged.
    """
    try:
      return json.loads((self.path / name).read_text())
    except FileNotFoundError:
      return None
    except ValueError as error:
      raise ValueError(f'{self.path / name} is damaged: {error}') from error

  def write_json(self, name: str, value: Any) -> None:
    """Writes a JSON file of the folder; numbers that are not finite become null."""
    files.write_json(self.path / name, _finite(value))

  def close(self) -> None:
    """Gives the folder free; without a round of its run there, nothing of the run stays in it."""
    discard = self._is_new and not self.begun
    self._is_new = False
    if discard:
      kept = (noise_keys.NAME, noise_correlations.NAME)
      for name in ('config.json', *kept, 'tensorboard', *_RESULTS):
        _remove(self.path / name)
    self._lock.release(remove=discard)
    if discard and self._made:
      with contextlib.suppress(OSError):  # something else is in it
        self.path.rmdir()


def digest(contents: Mapping[str, str]) -> str:
  """A short hash of a run's contents."""
  return hashlib.sha256(json.dumps(dict(contents), sort_keys=True).encode()).hexdigest()[:16]


def _check_record(
  where: str,
  record: Mapping[str, Any],
  checksums: Mapping[str, str],
  contents: Mapping[str, str],
) -> None:
  """Refuses to go on with other data or contents than a record has."""
  earlier = record.get('data_checksums', {})  # an earlier version may have known fewer
  changed = sorted(name for name, value in earlier.items() if checksums.get(name) != value)
  if changed:
    raise ValueError(
      f'{where} holds a run with other data: the checksum of {changed[0]} differs. Choose another '
      'folder.'
    )
  for name, value in record.get('contents', {}).items():
    if name in contents and contents[name] != value:
      what = {
        'model': 'a model that holds other numbers',
        'examples': 'other training or validation examples',
        'noise correlation': f'another {noise_correlations.NAME}',
      }.get(name, f'another {name}.py')
      raise ValueError(
        f'{where} holds a run with {what}, whose noise must not meet other values. Choose another '
        'folder.'
      )


def _is_of_a_run(record: Any) -> bool:
  config = record.get('config') if isinstance(record, dict) else None
  return isinstance(config, dict) and {'dataset', 'method'} <= config.keys()


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
  return continuing.as_begun(record['config'], record.get('working_folder', ''))


def recorded_settings(folder: str) -> dict[str, Any] | None:
  """The settings of the run in a folder, paths as they were meant; None if there is none.

  Raises:
    ValueError: what is there cannot be read.
  """
  path = pathlib.Path(folder) / 'config.json'
  try:
    return _settings(json.loads(path.read_text()))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def new_folder(config: ExperimentConfig, root: pathlib.Path = pathlib.Path('results')) -> str:
  """Makes a new numbered folder for a run under `root` and returns its path.

  Raises:
    OSError: it cannot be made.
  """
  parts = [pathlib.PurePath(config.dataset).name, config.method]
  name = '-'.join(parts + ([config.privacy] if config.privacy != 'none' else []))
  files.make_folder(root)
  try:
    number = 1
    while True:
      path = root / f'{name}-{number:03d}'
      try:
        path.mkdir()
        return str(path)
      except FileExistsError:
        number += 1
  except OSError as error:
    raise files.WriteError(root, error) from error


def _remove(path: pathlib.Path) -> None:
  if path.is_dir():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


def _finite(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {str(k): _finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [_finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
