"""One native runtime for a module: its worker takes seconds to start."""

import pytest

import runtime


@pytest.fixture(scope='module')
def native():
  with runtime.create('native') as created:
    yield created
