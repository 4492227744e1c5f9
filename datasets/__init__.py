"""Federated data sets in one form. `load_dataset(name, seed=...)` loads one."""

from datasets.dataframe import from_dataframe
from datasets.federated import ClientExamples, ClientSource, ClientStream, FederatedDataset, Task
from datasets.parquet import from_parquet
from datasets.registry import DATASETS, load_dataset

__all__ = [
  'DATASETS',
  'ClientExamples',
  'ClientSource',
  'ClientStream',
  'FederatedDataset',
  'Task',
  'from_dataframe',
  'from_parquet',
  'load_dataset',
]
