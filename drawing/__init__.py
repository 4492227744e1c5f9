"""How every figure looks, in one place: colours, markers, dashes, words and labels on the lines.

The ground floor: imports matplotlib, and nothing of the project.
"""

from drawing.labels import height_of_ends, label_ends
from drawing.scales import beyond, fences, log_y, mark_rounds
from drawing.style import (
  BLUE,
  COLOURS,
  GREY,
  MARKERS,
  MOST_STYLES,
  ORANGE,
  STYLE,
  Line,
  line,
  metric_words,
  shades,
)

__all__ = [
  'BLUE',
  'COLOURS',
  'GREY',
  'MARKERS',
  'MOST_STYLES',
  'ORANGE',
  'STYLE',
  'Line',
  'beyond',
  'fences',
  'height_of_ends',
  'label_ends',
  'line',
  'log_y',
  'mark_rounds',
  'metric_words',
  'shades',
]
