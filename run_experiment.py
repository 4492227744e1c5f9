"""Trains a private, personalised federation: `run_experiment.py --help`."""

import sys

if sys.version_info[:2] != (3, 11):
  sys.exit(
    f'error: Python 3.11 is needed (TensorFlow Federated 0.87 has no other), and this is '
    f'{sys.version_info[0]}.{sys.version_info[1]}; `make setup` makes an environment in .venv.'
  )
try:
  from experiments import cli
except ModuleNotFoundError as missing:
  sys.exit(
    f'error: the package {missing.name} is not installed; `make setup` makes an environment in '
    '.venv, whose Python is .venv/bin/python.'
  )


def main_entry() -> None:
  """The console script `run-experiment`."""
  sys.exit(cli.main(sys.argv))


if __name__ == '__main__':
  main_entry()
