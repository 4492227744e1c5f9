"""Trains a private, personalised federation: `run_experiment.py --help`."""

import sys

from experiments import cli


def main_entry() -> None:
  """The console script `run-experiment`."""
  sys.exit(cli.main(sys.argv))


if __name__ == '__main__':
  main_entry()
