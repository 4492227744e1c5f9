"""Folders that go with the process which made them, however it ends."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import weakref

# Left to itself, it reads from a pipe of ours: a line says that all is done. If the pipe ends
# without one, it removes the folder, to which others that end a little later may still be writing.
# (A child that was forked and runs no other program holds the pipe, too, for as long as it lives.)
_KEEPER = (
  'exec 3<&0;'
  '(read -r _ <&3 && exit; for seconds in 0 1 2 4 8; do sleep $seconds; rm -rf "$0"; done) &'
)


class Folder:
  """A temporary folder that goes with this object, and when its process is killed, too.

  Attributes:
    name: its path.
    cleanup: removes it now; a second call does nothing.
  """

  def __init__(self, prefix: str):
    """Makes the folder, which only the user may enter.

    Args:
      prefix: of its name.
    """
    self.name = tempfile.mkdtemp(prefix=prefix)
    theirs, ours = os.pipe()
    self.cleanup = weakref.finalize(self, _end, self.name, ours, os.getpid())
    try:
      # Without it a killed process leaves its folder, and nothing else is amiss.
      with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run(
          ['/bin/sh', '-c', _KEEPER, self.name],
          stdin=theirs,
          stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL,
          start_new_session=True,  # what ends this process in a terminal does not reach it
          check=True,
        )
    finally:
      os.close(theirs)


def _end(name: str, pipe: int, owner: int) -> None:
  """Removes a folder and tells its keeper, which else does what is left to do."""
  if os.getpid() == owner:  # and not a child that was forked
    shutil.rmtree(name, ignore_errors=True)
    if not os.path.exists(name):
      with contextlib.suppress(OSError):  # the keeper has been killed
        os.write(pipe, b'done\n')
  os.close(pipe)
