"""The style sheet, and the check of figures that all others rely on."""

import matplotlib
import numpy as np
import pytest
from matplotlib import figure

import drawing
from drawing import labels
from tests.drawing import overlaps


def _axes():
  page = figure.Figure(figsize=(6, 3.2), layout='constrained')
  axes = page.subplots()
  axes.set_xlabel('communication rounds')
  axes.set_ylabel(drawing.metric_words('mse'))
  return page, axes


def test_styles_differ():
  styles = [drawing.line(i) for i in range(drawing.MOST_STYLES)]
  assert len(set(map(str, styles))) == len(styles)
  for part in ('colour', 'marker'):
    assert len({getattr(style, part) for style in styles[:10]}) == 10
  with pytest.raises(ValueError, match='a line has a number from 0, got -1'):
    drawing.line(-1)


@pytest.mark.parametrize('log', [False, True])
def test_ends_are_labelled_without_overlap(log):
  with matplotlib.rc_context(drawing.STYLE):
    page, axes = _axes()
    for i in range(12):
      axes.plot([0, 1, 2], [3, 2, 1 + 0.001 * i], **drawing.line(i).keywords, label=f'method {i}')
    axes.set_yscale('log' if log else 'linear')
    drawing.label_ends(axes)
    assert not overlaps.faults(page)
    written = [a.get_text() for a in axes.texts]
  assert written == [f'method {i}' for i in range(12)]


def test_heights_are_moved_as_little_as_needed():
  sizes = np.full(3, 0.1)
  np.testing.assert_allclose(labels._spread(np.array([0.9, 0.1, 0.5]), sizes), [0.9, 0.1, 0.5])
  np.testing.assert_allclose(labels._spread(np.array([0.5, 0.5, 0.9]), sizes), [0.45, 0.55, 0.9])
  moved = labels._spread(np.array([0.5, 0.52, 0.51]), sizes)
  assert np.all(np.diff(np.sort(moved)) >= 0.1 - 1e-12) and np.argsort(moved).tolist() == [0, 2, 1]
  # A name's upper edge stays below the title.
  np.testing.assert_allclose(labels._spread(np.ones(3), sizes), [0.75, 0.85, 0.95])


def test_a_leader_across_the_axes_looks_like_no_line():
  """A method that was run with few settings has its name far from its last point."""
  _, axes = _axes()
  axes.plot([0, 10], [1, 2], label='to the end')
  axes.plot([0], [3], marker='o', label='one point')
  drawing.label_ends(axes)
  dashes = {a.get_text(): a.arrow_patch.get_linestyle() for a in axes.texts}
  assert dashes['to the end'] in ('-', 'solid') and dashes['one point'] not in ('-', 'solid')
  assert all(a.arrow_patch.get_linewidth() < 1.0 for a in axes.texts)


def test_a_line_without_points_has_no_label():
  _, axes = _axes()
  axes.plot([], [], label='nothing')
  axes.plot([0, 1], [np.nan, np.nan], label='no number')
  drawing.label_ends(axes)
  assert not axes.texts


def test_faults_are_found():
  page, axes = _axes()
  axes.text(0.5, 0.5, 'one')
  axes.text(0.5, 0.5, 'two')
  assert any('overlaps' in fault for fault in overlaps.faults(page))
  page, axes = _axes()
  axes.annotate('far away', (1.2, 0.5), xycoords='figure fraction', annotation_clip=False)
  page.set_layout_engine('none')
  assert any('leaves the canvas' in fault for fault in overlaps.faults(page))
  page, axes = _axes()
  for name in ('one', 'two'):
    axes.plot([0, 1], [0, 1], color='red', label=name)
  assert any("'two' looks like 'one'" in fault for fault in overlaps.faults(page))
  page, axes = _axes()
  axes.set_ylabel('error')
  assert overlaps.faults(page) == ["'error' has no unit"]
  axes.set_ylabel('')
  assert any('y axis' in fault for fault in overlaps.faults(page))


def test_ticks_are_where_something_was_measured():
  _, axes = _axes()
  for rounds in ([0], [0, 7], [0, 3, 9, 10], range(0, 201, 10), range(0, 51, 5), range(24)):
    drawing.mark_rounds(axes, rounds)
    ticks = axes.get_xticks()
    assert set(ticks) <= set(rounds) and {min(rounds), max(rounds)} <= set(ticks)
    assert len(ticks) <= 7
  # Runs of few rounds beside a long one: '0 3' would read as '03'.
  drawing.mark_rounds(axes, [0, 1, 2, 3, *range(10, 101, 10)])
  ticks = axes.get_xticks()
  assert {0, 100} <= set(ticks) and len(ticks) > 3 and min(np.diff(ticks)) >= 8


def test_one_value_does_not_flatten_the_others():
  values = [*np.linspace(1, 2, 50), 900.0]
  low, high = drawing.fences([values])
  assert low == 1.0 and 2.0 <= high < 10.0
  assert drawing.beyond(values, low, high) == '1 beyond, up to 900'
  assert drawing.beyond([-5.0, 1.0, np.inf], 0.0, 2.0) == '1 below, down to -5; 1 beyond, up to inf'
  assert drawing.beyond([1.0], 0.0, 2.0) == ''
  assert drawing.fences([[1.0, 1.0]]) == (0.5, 1.5) and drawing.fences([]) == (0.0, 1.0)
