"""Attacks a configuration: see `experiments.audits.command`."""

import sys

from experiments.running import startup

with startup.quiet():  # what an attack is built of imports TensorFlow
  from experiments.audits import command

sys.exit(command.main(sys.argv))
