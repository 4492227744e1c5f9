"""GLEAM: 38 wearers of Google Glass, eating or not.

27,800 rows of 180 features of head movement, labels -1 and +1, from the
cross-silo paper's `gleam.mat`; 699 to 776 rows a wearer (section C.1), which Table A1 calls
training rows: 38 times as many are 27,800 only if they are all rows.
"""

from datasets import silos, sources

FILE = sources.GLEAM

load = silos.BinaryTables(
  name='gleam',
  file=FILE,
  read=silos.mat_tables(num_features=180),
  silo='wearer',
  citation='Rahman et al. (2015), Unintrusive eating recognition using Google Glass.',
)
