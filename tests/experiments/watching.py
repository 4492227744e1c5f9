"""A command as it is seen from outside: its processes, and where these listen.

And a Ray cluster that somebody else has started.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

from runtime.hosts import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
_MARK = 'TEST_OF'  # in the environment of whatever a test has started
LOOPBACK = {
  '0100007F', '00000000000000000000000001000000', '0000000000000000FFFF00000100007F',
}  # fmt: skip
# It lives until its standard input ends. It would end with its last client, were there not one that
# does nothing: the next would be given another, which does not keep to the loopback device.
_SERVER = """
import socket, subprocess, sys, tempfile
import ray
from ray.util.client.server import server as client_server
with tempfile.TemporaryDirectory(prefix='ray-') as folder:
  ray.init(
    num_cpus=2, include_dashboard=False, _node_ip_address='127.0.0.1', _temp_dir=folder,
    object_store_memory=80 * 2**20, log_to_driver=False,
  )
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{free.getsockname()[1]}'
  server = client_server.serve(*address.split(':'))
  stay = f'import ray, sys; ray.init("ray://{address}"); print(flush=True); sys.stdin.read()'
  pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
  client = subprocess.Popen([sys.executable, '-c', stay], **pipes)
  client.stdout.readline()
  print(f'ray://{address}', flush=True)
  sys.stdin.read()
  client.communicate()
  server.stop(0)
  ray.shutdown()
"""


def parents() -> dict[int, int]:
  """The parent of every process."""
  result = {}
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    with contextlib.suppress(OSError):  # it has ended
      result[int(path.parent.name)] = int(path.read_text().rpartition(')')[2].split()[1])
  return result


def command_line(pid: int) -> str:
  """Of a process; nothing of one that has ended."""
  try:
    return pathlib.Path(f'/proc/{pid}/cmdline').read_text().replace('\0', ' ')
  except OSError:
    return ''


def descendants() -> dict[int, str]:
  """The command line of every process below this one."""
  found, parent = {}, parents()
  for pid in parent:
    above = pid
    while above in parent and above != os.getpid():
      above = parent[above]
    if above == os.getpid() and pid != above and (words := command_line(pid)):
      found[pid] = words
  return found


def listening(pids: Iterable[int]) -> set[str]:
  """The addresses, in hexadecimal, on which some processes listen."""
  sockets = set()
  for pid in pids:
    for path in pathlib.Path(f'/proc/{pid}/fd').glob('*'):
      with contextlib.suppress(OSError):
        sockets.add(os.readlink(path))
  addresses = set()
  for table in ('tcp', 'tcp6'):
    for line in pathlib.Path(f'/proc/net/{table}').read_text().splitlines()[1:]:
      fields = line.split()
      if fields[3] == '0A' and f'socket:[{fields[9]}]' in sockets:
        addresses.add(fields[1].partition(':')[0])
  return addresses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
  """A process, and all that come of it, whoever is their parent by now.

  Attributes:
    process: the process.
    mark: what is in the environment of them all.
    output: the file with what it has written.
  """

  process: subprocess.Popen
  mark: bytes
  output: pathlib.Path

  def said(self) -> str:
    """What it has written."""
    return self.output.read_text()

  def processes(self) -> list[int]:
    """All of them that live."""
    found = []
    for path in pathlib.Path('/proc').glob('[0-9]*'):
      with contextlib.suppress(OSError):
        if self.mark in (path / 'environ').read_bytes().split(b'\0'):
          found.append(int(path.name))
    return found

  def cohort_workers(self) -> list[int]:
    """Those of them that are members of a run."""
    return [pid for pid in self.processes() if command_line(pid).startswith('ray::_Actor')]

  def parts_of_ray(self) -> set[int]:
    """Those of them that know of a cluster, and who keeps its processes."""
    first = {pid: command_line(pid).partition(' ')[0] for pid in self.processes()}
    return {pid for pid, name in first.items() if name.endswith(('/gcs_server', '/raylet'))}

  def wait_for(self, folder: pathlib.Path, pattern: str, seconds: float = 120) -> set[str]:
    """Waits for a file; returns where the processes have listened until then."""
    addresses: set[str] = set()
    now = looked = time.monotonic()
    deadline = now + seconds
    while not list(folder.glob(pattern)):
      assert self.process.poll() is None and now < deadline, self.said()
      time.sleep(0.01)
      now = time.monotonic()
      if now > looked + 0.5:  # it takes a while
        addresses, looked = addresses | listening(self.processes()), now
    return addresses

  def kill(self, seconds: float = 20) -> None:
    """Ends all of them, and those that they start meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := self.processes()) and time.monotonic() < deadline:
      for pid in left:
        with contextlib.suppress(ProcessLookupError):
          os.kill(pid, signal.SIGKILL)
      time.sleep(0.05)
    self.process.wait(seconds)

  def assert_ended(self, seconds: float = 20) -> None:
    """That nothing is left of it, soon."""
    deadline = time.monotonic() + seconds
    while left := self.processes():
      assert time.monotonic() < deadline, [command_line(pid) for pid in left]
      time.sleep(0.1)


@contextlib.contextmanager
def started(arguments: list[str], folder: pathlib.Path, **options) -> Iterator[Started]:
  """A Python program in a session of its own, of which nothing lives on in the end.

  Args:
    arguments: its command line.
    folder: for what it writes.
    **options: of `subprocess.Popen`.
  """
  folder.mkdir(parents=True, exist_ok=True)
  # A folder of a test's has too long a name for Ray's sockets.
  with (
    tempfile.TemporaryDirectory(prefix='t-', ignore_cleanup_errors=True) as temporary,
    open(folder / 'said', 'w') as said,
  ):
    own = {_MARK: str(folder), 'TMPDIR': temporary, 'PYTHONPATH': cluster.python_path()}
    process = subprocess.Popen(
      [sys.executable, *arguments], cwd=ROOT, start_new_session=True, text=True,
      env={**os.environ, 'RAY_USAGE_STATS_ENABLED': '0', **own},
      **{'stdin': subprocess.DEVNULL, 'stdout': said, 'stderr': said, **options},
    )  # fmt: skip
    mark = f'{_MARK}={folder}'.encode()
    result = Started(process=process, mark=mark, output=folder / 'said')
    try:
      yield result
    finally:
      result.kill()


def command(
  settings: dict, folder: pathlib.Path, *flags: str
) -> contextlib.AbstractContextManager[Started]:
  """The command line with settings, and further flags; the run is in `folder / 'run'`."""
  own = [f'--{name}={value}' for name, value in settings.items()]
  program = ['run_experiment.py', *own, f'--output_dir={folder / "run"}', *flags]
  return started(program, folder)


@contextlib.contextmanager
def somebodys_cluster(folder: pathlib.Path) -> Iterator[tuple[str, Started]]:
  """A cluster of two CPUs that somebody else has started: its address, and its processes."""
  pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
  with started(['-c', _SERVER], folder, **pipes) as server:
    assert server.process.stdout is not None
    address = server.process.stdout.readline().strip()
    assert address.startswith('ray://127.0.0.1:'), server.said()
    parts = server.parts_of_ray()
    assert len(parts) == 2, server.said()
    yield address, server
    assert server.parts_of_ray() == parts  # they are not a run's to end
    assert listening(server.processes()) <= LOOPBACK
    server.process.communicate('', timeout=60)
