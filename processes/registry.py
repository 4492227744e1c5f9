"""Every method by name. Importable without TensorFlow: the flags read it.

A new method is a file with a function `build(spec) -> FederatedMethod` and one entry here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodEntry:
  """What is known of a method before it is built.

  Attributes:
    name: value of `--method`; the module `processes.<name>` builds it.
    summary: one line.
    citation: the paper.
    privacy_units: values of `--privacy` that it has.
    flags: flags of its own, refused with other methods.
    personal: whether clients keep a model (client state).
  """

  name: str
  summary: str
  citation: str
  privacy_units: tuple[str, ...]
  flags: tuple[str, ...] = ()
  personal: bool = False


_CROSS_SILO = 'Liu et al., NeurIPS 2022'

METHODS: Mapping[str, MethodEntry] = {
  entry.name: entry
  for entry in (
    MethodEntry(
      name='fedavg',
      summary='federated averaging; with --privacy=client DP-FedAvg',
      citation='McMahan et al., AISTATS 2017; Andrew et al., NeurIPS 2021',
      privacy_units=('none', 'client', 'example'),
      flags=('server_learning_rate', 'weighting'),
    ),
    MethodEntry(
      name='local',
      summary='every client trains alone',
      citation=_CROSS_SILO,
      privacy_units=('none', 'example'),
      personal=True,
    ),
    MethodEntry(
      name='mr_mtl',
      summary='personal models held close to their mean',
      citation=_CROSS_SILO,
      privacy_units=('none', 'example'),
      flags=('server_learning_rate', 'weighting', 'mtl_lambda', 'regularizer_inside_clip'),
      personal=True,
    ),
  )
}

# Names that stand for a method with some flags set.
ALIASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
  'dp_fedavg': ('fedavg', {'privacy': 'client', 'adaptive_clipping': True}),
}
