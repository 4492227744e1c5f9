"""Modules of this folder that its tests share."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
