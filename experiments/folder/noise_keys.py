"""The file of a run's secret noise key, while the run goes on.

Until a private run has its results its key lies in `.noise_key` in the run's folder, so that a
run that was killed draws the same noise again for the rounds that were lost: had it another key,
those rounds would have released two noisy values, whose mean has less noise than was accounted
for. With the results the file is deleted. A key of the user's own (`--noise_key_file`) stays
where it is. Nothing else that a run writes holds the key.

Importing this module does not import TensorFlow.
"""

import contextlib
import os
import pathlib
import stat

from experiments.config.experiment import ExperimentConfig
from experiments.folder import files
from runtime.noise_key import NoiseKey

NAME = '.noise_key'
REHEARSAL = 'rehearsal'


def acquire(
  config: ExperimentConfig, folder: pathlib.Path | None, *, given: NoiseKey | None = None
) -> NoiseKey | None:
  """The noise key of a run: that with which it was begun, or a new one.

  Args:
    config: the run's configuration.
    folder: its folder, made if need be; None for a run that writes nothing.
    given: the key with which a run that is new is begun; by default a fresh one.

  Returns:
    None for a run without privacy, which draws from the seed.

  Raises:
    ValueError: the run was begun, and its key is gone or cannot be read.
    OSError: the key cannot be written.
  """
  if config.privacy == 'none':
    return None
  if config.noise_key == REHEARSAL:
    return NoiseKey.rehearsal(config.seed)
  if config.noise_key_file is not None:
    return _read(pathlib.Path(config.noise_key_file), f'--noise_key_file={config.noise_key_file}')
  if folder is None:
    return given or NoiseKey.fresh()
  path = folder / NAME
  if (folder / 'config.json').exists() and _has_begun(folder):
    if path.exists():
      return _read(path, str(path))
    if not (folder / 'summary.json').exists():
      raise ValueError(
        f'--output_dir={folder} holds a private run whose noise key is gone ({NAME} in it): rounds '
        'after its last checkpoint cannot be replayed, and with other noise they would cost '
        'privacy twice. Choose another folder.'
      )
    if config.declaration.keyed_setup:
      raise ValueError(
        f'--output_dir={folder} holds this run, which is finished, and its noise key is deleted: '
        'there is nothing to continue.'
      )
    return NoiseKey.fresh()  # nothing is drawn any more
  key = given or NoiseKey.fresh()
  _write(path, key)
  return key


def forget(folder: pathlib.Path) -> None:
  """Deletes the key of a finished run, if it lies in its folder."""
  with contextlib.suppress(FileNotFoundError):
    (folder / NAME).unlink()


def describe(config: ExperimentConfig) -> dict[str, str]:
  """What a privacy statement says of the key: its kind, and a sentence."""
  if config.noise_key == REHEARSAL:
    return {
      'kind': REHEARSAL,
      'text': 'REHEARSAL: noise, cohorts and batches follow from the public seed (--noise_key='
      'rehearsal). Whoever sees the results can subtract the noise: the guarantee is that of the '
      'same run with a secret key, and protects nobody here.',
    }
  if config.noise_key_file is not None:
    return {
      'kind': 'file',
      'path': str(config.noise_key_file),
      'text': f'The noise key is in {config.noise_key_file}, which is not part of the results. The '
      'guarantee holds against those who do not have that file, and for one run: any other with it '
      'has the same noise, which cancels in what both release.',
    }
  return {
    'kind': 'secret',
    'text': 'Noise, cohorts and batches follow from 256 bits of the operating system, which are '
    f'kept in {NAME} until the run has its results, and then deleted.',
  }


def _has_begun(folder: pathlib.Path) -> bool:
  """Whether a round of the run in a folder may have been released."""
  return (folder / NAME).exists() or any(
    (folder / name).exists() for name in ('privacy.json', 'checkpoints', 'summary.json')
  )


def _read(path: pathlib.Path, what: str) -> NoiseKey:
  try:
    with open(path) as file:
      mode = os.fstat(file.fileno()).st_mode
      text = file.read(1024)
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(
      f'{what} cannot be read: {error}. `(umask 077; openssl rand -hex 32 > FILE)` makes a key.'
    ) from None
  if stat.S_IMODE(mode) & 0o077:
    raise ValueError(f'{what} can be read by others; chmod 600 {path}.')
  try:
    return NoiseKey.from_hex(text)
  except ValueError as error:
    raise ValueError(
      f'{what}: {error} `(umask 077; openssl rand -hex 32 > FILE)` makes one.'
    ) from None


def _write(path: pathlib.Path, key: NoiseKey) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.writing_atomically(path) as temporary:
    # At no time is it anybody else's to read.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, 'w') as file:
      file.write(key.hex() + '\n')
