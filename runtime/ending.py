"""TFF's default runtime, which TFF makes when it is imported, ends before the program does.

When it is finalised it looks for modules that may be gone by then, and an error would be printed.
Importing this module is enough.
"""

import atexit

import tensorflow_federated as tff


class _Ended(tff.framework.SyncContext):
  """In the place of TFF's default runtime."""

  def invoke(self, comp, arg):
    raise RuntimeError('The program is ending: TFF has no runtime any more.')


atexit.register(lambda: tff.framework.set_default_context(_Ended()))
