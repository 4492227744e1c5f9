"""Federated data sets in one form. `load_dataset(name, seed=...)` loads one."""

from datasets.federated import ClientExamples
from datasets.federated import ClientSource
from datasets.federated import FederatedDataset
from datasets.federated import Task
from datasets.registry import DATASETS
from datasets.registry import load_dataset

__all__ = [
  'DATASETS',
  'ClientExamples',
  'ClientSource',
  'FederatedDataset',
  'Task',
  'load_dataset',
]
