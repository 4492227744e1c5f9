"""Folders that go with the process which made them, however it ends."""

import os
import subprocess
import tempfile
import weakref

# Left to itself, it reads from a pipe of ours: a line says that all is done. If the pipe ends
# without one, it removes the folder, to which others that end a little later may still be writing.
_KEEPER = (
  'exec 3<&0;'
  '(read -r _ <&3 && exit; for seconds in 0 1 2 4 8; do sleep $seconds; rm -rf "$0"; done) &'
)


class Folder(tempfile.TemporaryDirectory):
  """A temporary folder that is removed when its process is killed, too.

  Attributes:
    name: its path.
  """

  def __init__(self, prefix: str):
    """Makes the folder, which only the user may enter.

    Args:
      prefix: of its name.
    """
    super().__init__(prefix=prefix, ignore_cleanup_errors=True)
    theirs, ours = os.pipe()
    subprocess.run(
      ['/bin/sh', '-c', _KEEPER, self.name],
      stdin=theirs,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      start_new_session=True,  # what ends this process in a terminal does not reach it
      check=True,
    )
    os.close(theirs)
    self._dismiss = weakref.finalize(self, _dismiss, ours)

  def cleanup(self) -> None:
    """Removes the folder."""
    super().cleanup()
    self._dismiss()


def _dismiss(pipe: int) -> None:
  os.write(pipe, b'done\n')
  os.close(pipe)
