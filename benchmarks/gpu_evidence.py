"""What a GPU does for this project, in pieces of under ten minutes: `make gpu-evidence`.

  ./fl python -m benchmarks.gpu_evidence                        all that is not done, the page
  ./fl python -m benchmarks.gpu_evidence --pieces=check,w1      some of them
  ./fl python -m benchmarks.gpu_evidence --device=cpu --tiny    a rehearsal on the CPU at tiny sizes

Each piece is a command of its own with a limit of nine minutes, so that all of it runs unattended
on a machine that is lent for a while: what was done stays done, and the same command goes on.
Training is interrupted at the limit, keeps its checkpoint, and is continued by the next call.
Everything goes to --output, with `gpu_evidence.md` at the end.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 540
_GRACE_SECONDS = 45  # for a checkpoint
DONE, FAILED, GOES_ON, NOT_HERE = 'done', 'failed', 'to be continued', 'not on this machine'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
  """One piece of evidence.

  Attributes:
    name: of its folder and on the command line.
    what: in words.
    command: its arguments behind the Python interpreter, from the folder for what it leaves.
    needs_gpus: how many GPUs it needs, by --device=gpu.
    continued: whether it is interrupted and continued, rather than killed.
    numbers: what the page shows, from the folder and the output.
  """

  name: str
  what: str
  command: Callable[[pathlib.Path], Sequence[str]]
  needs_gpus: int = 1
  continued: bool = False
  numbers: Callable[[pathlib.Path, str], str] = lambda folder, output: output.strip()


def pieces(device: str, *, tiny: bool = False) -> list[Piece]:
  """All pieces in their order.

  Args:
    device: gpu or cpu.
    tiny: a rehearsal with other sizes: its numbers are no evidence.
  """

  def benchmark(*cases: str) -> Callable[[pathlib.Path], Sequence[str]]:
    return lambda folder: [
      '-m', 'benchmarks.run', f'--only={",".join(cases)}', f'--devices={device}',
      f'--output={folder}',
    ]  # fmt: skip

  def rows(folder: pathlib.Path, output: str) -> str:
    results = json.loads((folder / 'benchmarks.json').read_text())['results']
    return '; '.join(
      f'{case}: {r["seconds_per_round"]:.4f} s a round, peak {r["peak_megabytes"]:.0f} MB, first '
      f'round after {r.get("first_round_done", 0.0):.0f} s'
      for case, r in results.items()
    )

  small = ['--dataset=digits', '--rounds=2', '--eval_every=0', '--model=softmax'] if tiny else []
  private = ['--privacy=example', '--target_epsilon=4', '--delta=1e-3', f'--device={device}']

  def experiment(*flags: str) -> Callable[[pathlib.Path], Sequence[str]]:
    return lambda folder: [
      'run_experiment.py', *flags, *private, *small, f'--output_dir={folder / "run"}',
      *(['--resume'] if (folder / 'run').exists() else []),
    ]  # fmt: skip

  school = ['--dataset=school', '--rounds=200', '--eval_every=0', '--checkpoint_every=0']
  lambdas = '0.1,1' if tiny else '0.0001,0.001,0.003,0.01,0.03,0.1,0.3,1,3,10'
  network = [
    '--dataset=rotated_masked_mnist', '--model=cnn3x3', '--method=mr_mtl', '--mtl_lambda=1',
    '--rounds=200', '--batch_size=100', '--client_learning_rate=0.1', '--eval_every=20',
    '--checkpoint_every=5',
  ]  # fmt: skip
  return [
    Piece(
      name='check',
      what="the self-check: this device, the CPU and TFF's own runtime agree",
      command=lambda folder: [
        '-m', 'runtime.self_check', f'--device={device}', *(['--skip_native'] if tiny else [])
      ],
    ),
    Piece(
      name='parity',
      what="two private rounds of MR-MTL on both runtimes: largest difference of the metrics",
      command=lambda folder: ['-m', 'benchmarks.gpu_evidence', f'--parity={folder}',
                              f'--device={device}'],
    ),
    Piece(
      name='tests', what='the tests of the runtime, with this device for what names none',
      command=lambda folder: [
        '-m', 'pytest', '-q', f'--device={device}', '-m', 'not slow and not exhaustive',
        '-p', 'no:cacheprovider', '-n', '2' if tiny else '8',
        f'tests/runtime{"/test_state_variables.py" if tiny else ""}',
      ],
      numbers=lambda folder, output: output.strip().splitlines()[-1],
    ),
    Piece(name='w1', what='W1: a softmax layer, DP-FedAvg', command=benchmark('w1_xla'),
          numbers=rows),
    Piece(name='w2', what='W2: a convolution network', command=benchmark('w2_xla'), numbers=rows),
    Piece(name='school', what='School-sized MR-MTL with DP-SGD', command=benchmark('school_xla'),
          numbers=rows),
    Piece(name='sweep_cost', what='60 settings in one program', command=benchmark('sweep_60'),
          numbers=rows),
    Piece(name='memory', what='10,000 clients', command=benchmark('growth_100', 'growth_10000'),
          numbers=rows),
    Piece(
      name='sweep', what='a sweep of MR-MTL over lambda and seeds', continued=True,
      command=lambda folder: [
        'run_experiment.py', '--method=mr_mtl', *school, *private, *small,
        f'--sweep=mtl_lambda={lambdas}', '--seeds=0-1' if tiny else '--seeds=0-4',
        f'--output_dir={folder / "sweep"}',
        *(['--resume'] if (folder / 'sweep' / 'sweep.json').exists() else []),
      ],
      numbers=lambda folder, output: f'{len(list((folder / "sweep" / "runs").iterdir()))} runs',
    ),
    Piece(
      name='two_gpus', what='the self-check on two GPUs, or on two halves of one',
      command=lambda folder: [
        '-m', 'benchmarks.gpu_evidence', f'--two={folder}', f'--device={device}'
      ],
    ),
    Piece(
      name='convolution', what='Rotated & Masked MNIST with the 3x3 network, 40 silos, 200 rounds',
      continued=True, command=experiment(*network), numbers=_summary,
    ),
  ]  # fmt: skip


def _summary(folder: pathlib.Path, output: str) -> str:
  summary = json.loads((folder / 'run' / 'summary.json').read_text())
  metrics = {n: v for n, v in summary['metrics'].items() if n in ('test_accuracy', 'test_mse')}
  return f'{summary["rounds"]} rounds, {metrics}'


# ------------------------------------------------------------ running


def run_piece(
  piece: Piece, folder: pathlib.Path, *, limit: float = LIMIT_SECONDS, gpus: int | None = None
) -> dict[str, Any]:
  """Runs one piece, up to the limit, and keeps its record.

  Args:
    piece: which.
    folder: for what it leaves; record.json says how it went.
    limit: seconds.
    gpus: how many there are; None where none is needed.

  Returns:
    The record: state, seconds (of all calls together), text.
  """
  folder.mkdir(parents=True, exist_ok=True)
  record_path = folder / 'record.json'
  before = json.loads(record_path.read_text()) if record_path.exists() else {}
  if before.get('state') == DONE:
    return before
  if gpus is not None and gpus < piece.needs_gpus:
    record = {'state': NOT_HERE, 'seconds': 0.0, 'text': f'{gpus} GPUs'}
    record_path.write_text(json.dumps(record, indent=1) + '\n')
    return record
  start = time.monotonic()
  out, errors = folder / 'output.txt', folder / 'errors.txt'
  with out.open('w') as output, errors.open('w') as said_wrong:
    process = subprocess.Popen(
      [sys.executable, *piece.command(folder.resolve())], cwd=_ROOT, stdout=output,
      stderr=said_wrong, start_new_session=True,
    )  # fmt: skip
    code = _wait(process, limit, piece.continued)
  text = out.read_text()
  seconds = before.get('seconds', 0.0) + time.monotonic() - start
  if code == 0:
    state, said = DONE, piece.numbers(folder, text)
  elif code is None and piece.continued:
    state, said = GOES_ON, f'interrupted after {limit:.0f} s; the same command goes on'
  else:
    reason = f'over {limit:.0f} s' if code is None else f'exit status {code}'
    state, said = FAILED, f'{reason}: {(text + errors.read_text()).strip()[-1500:]}'
  record = {'state': state, 'seconds': seconds, 'text': said}
  record_path.write_text(json.dumps(record, indent=1) + '\n')
  return record


def _wait(process: subprocess.Popen, limit: float, gently: bool) -> int | None:
  """The exit status; None if the limit was reached and the process ended."""
  try:
    return process.wait(limit)
  except subprocess.TimeoutExpired:
    pass
  if gently:
    os.killpg(process.pid, signal.SIGINT)
    try:
      process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
      gently = False
  if process.poll() is None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
  return None


def page(records: Mapping[str, Mapping[str, Any]], chosen: Sequence[Piece], device: str,
         *, tiny: bool) -> str:  # fmt: skip
  """The page in Markdown."""
  lines = [
    '# Evidence from a GPU' if device == 'gpu' else '# A rehearsal of the evidence from a GPU',
    '',
    f'{datetime.date.today().isoformat()}, {_machine(device)}.'
    + (' Tiny sizes: these numbers are no evidence.' if tiny else ''),
    '',
    '| piece | what | state | seconds | numbers |',
    '| --- | --- | --- | --- | --- |',
  ]
  for piece in chosen:
    record = records.get(piece.name, {'state': 'not run', 'seconds': 0.0, 'text': ''})
    state = record['state'] if record['state'] != FAILED else f'**{FAILED}**'
    said = ' '.join(str(record['text']).replace('|', '/').split())
    lines.append(f'| {piece.name} | {piece.what} | {state} | {record["seconds"]:.0f} | {said} |')
  return '\n'.join(lines) + '\n'


def _machine(device: str) -> str:
  if device != 'gpu':
    return f'{os.cpu_count()} CPUs'
  done = subprocess.run(
    ['nvidia-smi', '--query-gpu=name,memory.total,driver_version', '--format=csv,noheader'],
    capture_output=True, text=True, check=False,
  )  # fmt: skip
  return '; '.join(done.stdout.split('\n')).strip('; ') or 'a GPU'


def _count_gpus() -> int:
  try:
    done = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, check=False)
  except FileNotFoundError:
    return 0
  return done.stdout.count('GPU ')


# ------------------------------------------------- pieces with code of their own


def parity(folder: pathlib.Path, device: str) -> str:
  """Two private rounds on both runtimes.

  Returns:
    What the page says.

  Raises:
    ValueError: a metric differs by more than a thousandth.
    CalledProcessError: a run failed.
  """
  flags = [
    '--method=mr_mtl', '--dataset=digits', '--dataset_option=num_clients=5', '--model=softmax',
    '--privacy=example', '--target_epsilon=4', '--delta=1e-3', '--rounds=2', '--batch_size=16',
    '--eval_every=0', '--checkpoint_every=0',
    '--noise_key=rehearsal',  # the same noise on both
  ]  # fmt: skip
  metrics = {}
  for runtime, where in (('native', 'auto'), ('xla', device)):
    run = folder / runtime
    subprocess.run(
      [sys.executable, 'run_experiment.py', *flags, f'--runtime={runtime}', f'--device={where}',
       f'--output_dir={run}'],
      cwd=_ROOT, stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    metrics[runtime] = json.loads((run / 'summary.json').read_text())['metrics']
  worst = max(abs(metrics['native'][n] - metrics['xla'][n]) for n in metrics['native'])
  if worst > 1e-3:
    raise ValueError(f'the runtimes differ by {worst:.2g}: {metrics}')
  return f'largest difference {worst:.2g} over {len(metrics["native"])} metrics'


def two_devices(device: str) -> str:
  """The self-check on two devices: two GPUs, two halves of one, or with `cpu` the CPU twice.

  Returns:
    Which devices they were.

  Raises:
    ValueError: TensorFlow sees no GPU where one is asked for, or the check failed.
  """
  import tensorflow as tf

  names = 'cpu,cpu'
  if device == 'gpu':
    gpus = tf.config.list_physical_devices('GPU')
    if not gpus:
      # The machine has one (`_count_gpus`): what then runs on its CPU is no evidence of a GPU.
      raise ValueError('TensorFlow sees no GPU on this machine; nothing was checked')
    if len(gpus) == 1:
      half = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
      tf.config.set_logical_device_configuration(gpus[0], [half, half])
    names = 'gpu:0,gpu:1'
  from runtime import self_check

  if not self_check.check(names, native=False):
    raise ValueError(f'the self-check on {names} failed')
  return names


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the pieces; 1 if one failed, 3 if one is to be continued."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--device', default='gpu', choices=('gpu', 'cpu'))
  parser.add_argument('--pieces', default='', help='names, by commas; all by default')
  parser.add_argument('--tiny', action='store_true', help='a rehearsal at tiny sizes')
  parser.add_argument('--limit', type=float, default=LIMIT_SECONDS, help='seconds of a piece')
  parser.add_argument('--output', default='results/gpu_evidence', help='folder of the results')
  parser.add_argument('--parity', default='', help=argparse.SUPPRESS)
  parser.add_argument('--two', default='', help=argparse.SUPPRESS)
  own = parser.parse_args(arguments)
  if own.parity:
    print(parity(pathlib.Path(own.parity), own.device))
    return 0
  if own.two:
    print(two_devices(own.device))
    return 0
  every = pieces(own.device, tiny=own.tiny)
  names = own.pieces.split(',') if own.pieces else [piece.name for piece in every]
  if unknown := sorted(set(names) - {piece.name for piece in every}):
    parser.error(f'--pieces={",".join(unknown)}: there are {", ".join(p.name for p in every)}')
  output = pathlib.Path(own.output)
  gpus = _count_gpus() if own.device == 'gpu' else None
  for piece in every:
    if piece.name in names:
      print(f'{piece.name} ...', end=' ', flush=True)
      record = run_piece(piece, output / piece.name, limit=own.limit, gpus=gpus)
      print(f'{record["state"]}, {record["seconds"]:.0f} s', flush=True)
  records = {
    piece.name: json.loads((output / piece.name / 'record.json').read_text())
    for piece in every
    if (output / piece.name / 'record.json').exists()
  }
  text = page(records, every, own.device, tiny=own.tiny)
  (output / 'gpu_evidence.md').write_text(text)
  print('\n' + text)
  states = {record['state'] for record in records.values()}
  return 1 if FAILED in states else 3 if GOES_ON in states else 0


if __name__ == '__main__':
  sys.exit(main())
