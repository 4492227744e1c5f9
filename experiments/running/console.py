"""What is printed at the end of a run."""

import textwrap
from collections.abc import Sequence

from experiments.folder.metrics import EVERYONE, MetricTable
from experiments.running import references
from experiments.running.progress import show, show_seconds


def final_report(*, table: MetricTable, metric: str, statement: str, summary: dict) -> str:
  """What a run shows at its end.

  The metrics by group with their spread over clients, who is left out, how good that is beside
  plain references, and the privacy statement.

  Args:
    table: the run's metrics.
    metric: the main metric's name, 'accuracy' or 'mse'.
    statement: the privacy statement in words, wrapped.
    summary: the run's summary.
  """
  lines = [
    f'After {summary["rounds"]} rounds '
    f'({show_seconds(summary["seconds_per_round"])} a round, '
    f'{show_seconds(summary["compile_seconds"])} of compiling '
    f'{summary["compilations"]} computations to {summary["compiled_programs"]} programs):',
    '',
    *_metric_lines(table, metric),
    '',
  ]
  for words in _remarks(metric, summary):
    lines += [textwrap.fill(words, 100), '']
  lines.append(statement)
  diverged = table.first_divergence()  # of a loss, if there is one
  if diverged:
    has_diverged = diverged.round and diverged.metric.endswith('loss')
    tries = ' Try a smaller --client_learning_rate.' if has_diverged else ''
    what = 'The run has diverged: ' if has_diverged else ''
    lines += ['', f'{what}{diverged.name} is {diverged.value} after round {diverged.round}.{tries}']
  return '\n'.join(lines)


def _remarks(metric: str, summary: dict) -> list[str]:
  """Who is not in the numbers, and how good they are."""
  remarks = []
  left_out = summary['left_out']
  if left_out:
    everybody = summary['clients'] + len(left_out)
    remarks.append(
      f'{len(left_out)} of {everybody} clients are left out, who have fewer than '
      f'{summary["min_examples"]} training examples: {_some(left_out)}. --min_examples=1 keeps all.'
    )
  value = summary['metrics'].get(f'test_{metric}')
  words = '' if value is None else references.sentence(value, summary['references'], metric)
  if words:
    remarks.append(f'On all test examples, {words}')
    if summary['privacy']['private']:
      remarks[-1] += ' (What is compared with has no privacy, and is for your eyes only.)'
  if summary['references_missing']:
    remarks.append(summary['references_missing'])
  return remarks


def _some(names: Sequence[str], most: int = 3) -> str:
  more = f' and {len(names) - most} more' if len(names) > most else ''
  return f'{", ".join(names[:most])}{more}'


def _metric_lines(table: MetricTable, metric: str) -> list[str]:
  rows = [('', metric, 'median client', '10 to 90 % of clients', 'mean of clients', 'std')]
  for group in table.groups():
    values = table.latest(group)
    name = 'test, all clients' if group == EVERYONE else f'test, {group.replace("_", " ")}'
    for prefix, label in (('', name), ('global_', f'{name}, global model')):
      key = f'test_{prefix}{metric}'
      if key in values:
        rows.append(
          (
            label,
            show(values[key]),
            show(values[f'{key}_median']),
            f'{show(values[f"{key}_p10"])} to {show(values[f"{key}_p90"])}',
            show(values[f'{key}_mean']),
            show(values[f'{key}_std']),
          )
        )
  everyone = table.latest()
  if f'server_test_{metric}' in everyone:
    rows.append(("server's test set", show(everyone[f'server_test_{metric}']), '', '', '', ''))
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  return [
    '  '
    + row[0].ljust(widths[0])
    + ''.join(f'  {v.rjust(w)}' for v, w in zip(row[1:], widths[1:], strict=True))
    for row in rows
  ]
