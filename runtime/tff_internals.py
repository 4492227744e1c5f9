"""Every module of TFF's that is not public, and what is used of it; pinned with TFF 0.87.

All else comes from public names: `tff`, `tff.framework`, `tff.types`, `tff.structure`.

*   `computation_pb2.Computation`: how a graph and its bindings are serialised (`xla.subgraphs`).
*   `intrinsic_defs`: the names of the intrinsics that know nothing of placements,
    `GENERIC_*` and `SEQUENCE_*` (`xla.local`).
*   `native_compiler.desugar_and_transform_to_native`,
    `test_compiler.replace_secure_intrinsics_with_bodies`: what TFF compiles for its own
    runtime, with secure sums as the sums that they equal (`native`).
*   `tensorflow_computation.transform_args`, `transform_result`: what TFF's own contexts do to
    arguments and results (`native`).
"""

from tensorflow_federated.proto.v0 import computation_pb2 as computation_pb2
from tensorflow_federated.python.core.backends.native import compiler as native_compiler
from tensorflow_federated.python.core.backends.test import compiler as test_compiler
from tensorflow_federated.python.core.environments.tensorflow_frontend import (
  tensorflow_computation as tensorflow_computation,
)
from tensorflow_federated.python.core.impl.compiler import intrinsic_defs as intrinsic_defs

import runtime.ending  # noqa: F401 (so that TFF's runtime ends quietly)

__all__ = [
  'computation_pb2',
  'intrinsic_defs',
  'native_compiler',
  'tensorflow_computation',
  'test_compiler',
]
