"""The parts of a report's page. All text that comes in is escaped; nothing is fetched."""

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5b5b5b; --paper: #ffffff;
  --rule: #d5d5d5; --card: #f6f7f9; --mark: #0072B2; --warn: #D55E00; }
:root[data-theme=dark] { --ink: #e8e8e8; --soft: #a9a9a9; --paper: #16181c; --rule: #3a3d44;
  --card: #1f2228; --mark: #56B4E9; --warn: #E69F00; }
@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) { --ink: #e8e8e8;
  --soft: #a9a9a9; --paper: #16181c; --rule: #3a3d44; --card: #1f2228; --mark: #56B4E9;
  --warn: #E69F00; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; color: var(--ink);
  background: var(--paper); max-width: 68rem; margin: 0 auto; padding: 1.6rem 1.2rem 4rem; }
header { display: flex; gap: 1rem; align-items: flex-start; justify-content: space-between; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid var(--rule);
  padding-bottom: .25rem; overflow-wrap: anywhere; }
p { max-width: 52rem; margin: .5rem 0; } .soft { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; }
figure { margin: 0; } figure img { width: 100%; max-width: 60rem; height: auto; background: #fff;
  border-radius: 6px; padding: .5rem; display: block; }
p.warning { border-left: 4px solid var(--warn); padding-left: .7rem; font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr));
  gap: 1rem; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 6px;
  padding: .8rem 1rem; font-size: .9rem; overflow-wrap: anywhere; }
.card h3 { margin: 0 0 .4rem; font-size: .98rem; }
.card p { margin: .45rem 0; } .card ul { margin: .2rem 0; padding-left: 1.2rem; }
.filters { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; margin: .6rem 0; }
.filters label { font-size: .9rem; } select, button { font: inherit; font-size: .9rem;
  color: inherit; background: var(--card); border: 1px solid var(--rule); border-radius: 4px;
  padding: .15rem .5rem; }
[hidden] { display: none !important; }
details { margin: .8rem 0; } summary { cursor: pointer; }
/* On a telephone each row is a box of its own, with the column's name before each value; a picture
   stays large enough to be read and is pushed sideways in its frame. */
@media screen and (max-width: 40rem) {
  figure { overflow-x: auto; } figure img { min-width: 40rem; box-sizing: border-box; }
  thead { display: none; } table, tbody, tr { display: block; }
  tr { border: 1px solid var(--rule); border-radius: 6px; padding: .3rem .7rem; margin: .5rem 0; }
  td { display: flex; gap: 1rem; justify-content: space-between; border: 0; padding: .1rem 0;
    text-align: right; overflow-wrap: anywhere; }
  td:empty { display: none; }
  td::before { content: attr(data-column); color: var(--soft); text-align: left;
    flex-shrink: 0; max-width: 55%; }
}
@media print { body { max-width: none; font-size: 10.5pt; } .filters, button { display: none; }
  section, .card, tr { break-inside: avoid; } .scroll { overflow: visible; } }
"""

# Filters hide what has another value; the theme is the reader's system's until the button is used.
_SCRIPT = """
const chosen = {};
function filter(select) {
  chosen[select.name] = select.value;
  for (const item of document.querySelectorAll('[data-filtered]')) {
    const own = JSON.parse(item.dataset.filtered);
    item.hidden = Object.entries(chosen).some(
      ([name, value]) => value && own[name] && !own[name].includes(value));
  }
}
function turn() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark'
    : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
}
for (const select of document.querySelectorAll('.filters select'))
  select.addEventListener('change', () => filter(select));
document.querySelector('#theme').addEventListener('click', turn);
"""

# name -> values: an item is shown if each chosen value is among those of its name.
Tags = Mapping[str, Sequence[str]]


def page(*, title: str, subtitle: str = '', parts: Sequence[str]) -> str:
  """A whole page of parts which are HTML already."""
  body = '\n'.join(part for part in parts if part)
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header><div><h1>{html.escape(title)}</h1>{paragraph(subtitle, soft=True)}</div>
<button id="theme" type="button">dark or light</button></header>
{body}
<script>{_SCRIPT}</script>
</body>
</html>
"""


def section(heading: str, *parts: str) -> str:
  """A heading and what stands under it."""
  return f'<section><h2>{html.escape(heading)}</h2>\n' + '\n'.join(parts) + '</section>'


def paragraph(text: str, *, warning: bool = False, soft: bool = False) -> str:
  """A paragraph; nothing for an empty text."""
  kind = 'warning' if warning else 'soft' if soft else ''
  mark = f' class="{kind}"' if kind else ''
  return f'<p{mark}>{html.escape(text)}</p>' if text else ''


def filters(choices: Mapping[str, Sequence[str]]) -> str:
  """A menu for each name with more than one value, which hides all else that has tags."""
  menus = [
    f'<label>{html.escape(name)} <select name="{html.escape(name)}"><option value="">all</option>'
    + ''.join(f'<option>{html.escape(value)}</option>' for value in values)
    + '</select></label>'
    for name, values in choices.items()
    if len(values) > 1
  ]
  return f'<div class="filters">{"".join(menus)}</div>' if menus else ''


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], tags: Sequence[Tags] = ()) -> str:
  """A table of texts, whose rows may have tags for the filters."""
  head = ''.join(f'<th scope="col">{html.escape(cell)}</th>' for cell in heading)
  marks = [_mark(own) for own in tags] or [''] * len(rows)
  body = '\n'.join(
    f'<tr{mark}>' + ''.join(map(_cell, heading, row)) + '</tr>'
    for row, mark in zip(rows, marks, strict=True)
  )
  content = f'<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>'
  return f'<div class="scroll"><table>{content}</table></div>'


def _cell(column: str, text: str) -> str:
  return f'<td data-column="{html.escape(column)}">{html.escape(text)}</td>'


def _mark(tags: Tags) -> str:
  quoted = {name: [str(value) for value in values] for name, values in tags.items()}
  return f' data-filtered="{html.escape(json.dumps(quoted))}"' if quoted else ''


def image(svg: bytes, words: str) -> str:
  """A drawing inside the page, with words for those who do not see it."""
  content = base64.b64encode(svg).decode()
  source = f'data:image/svg+xml;base64,{content}'
  return f'<figure><img alt="{html.escape(words)}" src="{source}"></figure>'


def card(heading: str, text: str, tags: Tags | None = None) -> str:
  """A box with a heading and a privacy statement, whose entries become paragraphs and lists."""
  parts = []
  for name, sentences in _entries(text):
    label = f'<strong>{html.escape(name)}.</strong> ' if name else ''
    if len(sentences) == 1:
      parts.append(f'<p>{label}{html.escape(sentences[0])}</p>')
    else:
      items = ''.join(f'<li>{html.escape(sentence)}</li>' for sentence in sentences)
      parts.append(f'<p>{label}</p><ul>{items}</ul>')
  return (
    f'<div class="card"{_mark(tags or {})}><h3>{html.escape(heading)}</h3>{"".join(parts)}</div>'
  )


def _entries(text: str) -> list[tuple[str, list[str]]]:
  """(name, sentences) of a statement's lines, 'Name:  sentence' with indented continuations."""
  entries: list[tuple[str, list[str]]] = []
  for line in text.splitlines():
    named = re.match(r'([A-Z][a-z]+(?:[ -][a-z]+)?): +(\S.*)', line)
    if named and entries and entries[-1][0] == named[1]:
      entries[-1][1].append(named[2])
    elif named:
      entries.append((named[1], [named[2]]))
    elif line.startswith(' ') and entries:
      entries[-1][1][-1] += ' ' + line.strip()
    elif line.strip():
      entries.append(('', [line.strip()]))
  return entries


def cards(boxes: Sequence[str]) -> str:
  """Boxes side by side."""
  return '<div class="cards">' + '\n'.join(boxes) + '</div>'


def details(heading: str, content: str) -> str:
  """Something that opens on a click."""
  return f'<details><summary>{html.escape(heading)}</summary>{content}</details>'
