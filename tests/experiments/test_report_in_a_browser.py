"""The report in a real browser: its filters work, nothing overlaps, nothing is fetched."""

import itertools
import shutil

import pytest

from experiments.reports import report
from tests.experiments.test_report import PRIVATE, make_run

_BROWSER, _DRIVER = shutil.which('chromium'), shutil.which('chromedriver')
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    not (_BROWSER and _DRIVER), reason='needs the system packages chromium and chromium-driver'
  ),
]
_ARGUMENTS = (
  '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
  '--hide-scrollbars',
)  # fmt: skip

_OVERLAPS = """
const boxes = [...document.querySelectorAll('h1, h2, p, li, figure, table, .filters, button')]
  .filter(e => e.offsetParent !== null && !e.closest('details:not([open])') &&
    (!e.closest('table, details, .card') || e.matches('table')))
  .map(e => [e.textContent.slice(0, 40), e.getBoundingClientRect(), e]);
const found = [];
for (const [i, [words, a, first]] of boxes.entries())
  for (const [other, b, second] of boxes.slice(i + 1))
    if (!first.contains(second) && !second.contains(first) &&
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
      found.push(words + ' | ' + other);
return found;
"""


@pytest.fixture(name='browser', scope='module')
def _browser(tmp_path_factory):
  from selenium import webdriver
  from selenium.webdriver.chrome.service import Service

  options = webdriver.ChromeOptions()
  options.binary_location = _BROWSER
  for argument in (*_ARGUMENTS, f'--user-data-dir={tmp_path_factory.mktemp("profile")}'):
    options.add_argument(argument)
  browser = webdriver.Chrome(options=options, service=Service(_DRIVER))
  yield browser
  browser.quit()


@pytest.fixture(name='page', scope='module')
def _page(tmp_path_factory):
  folder = tmp_path_factory.mktemp('sweep')
  for method, epsilon, seed in itertools.product(('local', 'fedavg', 'mr_mtl'), (2.0, 4.0), (0, 1)):
    make_run(folder / f'{method}-{epsilon}-{seed}', method=method, seed=seed,
             target_epsilon=epsilon, base=0.5 + 0.1 / epsilon, **PRIVATE)  # fmt: skip
  return report.write([folder], title='Schools that learn together').as_uri()


def _rows(browser):
  shown = 'return [...document.querySelectorAll("tr[data-filtered]")].filter(r => !r.hidden).length'
  return browser.execute_script(shown)


def _choose(browser, name, value):
  from selenium.webdriver.support.select import Select

  Select(browser.find_element('css selector', f'select[name={name}]')).select_by_visible_text(value)


def test_filters_work(browser, page):
  browser.set_window_size(1200, 900)
  browser.get(page)
  assert _rows(browser) == 6
  _choose(browser, 'method', 'MR-MTL')
  assert _rows(browser) == 2
  _choose(browser, 'budget', 'epsilon 4')
  assert _rows(browser) == 1
  _choose(browser, 'method', 'all')
  assert _rows(browser) == 3


@pytest.mark.parametrize('width', [1200, 400])
def test_nothing_overlaps_or_leaves_the_window(browser, page, width):
  browser.set_window_size(width, 900)
  browser.get(page)
  assert browser.execute_script(_OVERLAPS) == []
  inner, content = browser.execute_script(
    'return [document.documentElement.clientWidth, document.documentElement.scrollWidth]'
  )
  assert content <= inner <= width
  # No table has to be pushed sideways, what opens on a click included.
  browser.execute_script("document.querySelectorAll('details').forEach(e => e.open = true)")
  pushed = 'return [...document.querySelectorAll(".scroll")].filter('
  pushed += 'e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 40))'
  assert width > 400 or browser.execute_script(pushed) == []
  browser.execute_script("document.querySelectorAll('details').forEach(e => e.open = false)")
  # The check can fail.
  browser.execute_script("document.querySelector('h2').style.marginTop = '-6rem'")
  assert browser.execute_script(_OVERLAPS) != []


def test_pictures_stay_readable_on_a_telephone(browser, page):
  """A picture is pushed sideways in its frame, which ends with the page."""
  browser.set_window_size(400, 900)
  browser.get(page)
  sizes = browser.execute_script(
    'return [...document.querySelectorAll("figure")].map(e => [e.getBoundingClientRect().right, '
    'getComputedStyle(e).overflowX, e.firstChild.getBoundingClientRect().width])'
  )
  assert sizes
  for right, sideways, width in sizes:
    assert right <= 400 and sideways == 'auto' and width >= 640


def test_dark_and_light(browser, page):
  browser.get(page)
  colour = 'return getComputedStyle(document.body).backgroundColor'
  before = browser.execute_script(colour)
  browser.find_element('id', 'theme').click()
  after = browser.execute_script(colour)
  assert before != after
  browser.find_element('id', 'theme').click()
  assert browser.execute_script(colour) == before


def test_no_request_leaves_the_page(browser, page):
  browser.get(page)
  fetched = browser.execute_script(
    'return performance.getEntriesByType("resource").map(e => e.name)'
  )
  assert all(name.startswith('data:') for name in fetched)
  policy = browser.find_element('css selector', 'meta[http-equiv=Content-Security-Policy]')
  assert "default-src 'none'" in policy.get_attribute('content')
