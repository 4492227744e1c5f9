"""Landmine: is there a mine on the radar image? 29 mine fields.

14,820 rows of 9 features, 445 to 690 rows a field, 6.1 % mines; labels -1 (none)
and +1 (mine). Not in the papers; a real cross-silo set of its full size. Since
mines are rare, accuracy says little here: always 'none' has 94 %.
"""

from datasets import files, silos

FILE = files.DataFile(
  name='landmine_29.npz',
  sha256=('945c6fdbcd366e00de151b70eace9f9e70437894a981868781242a68d7ed9769',),
  how=(
    'It holds the arrays x [14820, 9], y (0, 1) and client of the landmine data that is published'
    ' with several papers on multi-task learning.'
  ),
)

load = silos.BinaryTables(
  name='landmine',
  file=FILE,
  read=silos.npz_tables,
  silo='field',
  citation=(
    'Xue, Liao, Carin, Krishnapuram (2007), Multi-task learning for classification with Dirichlet'
    ' process priors.'
  ),
)
