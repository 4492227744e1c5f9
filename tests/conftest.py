"""Shared by all tests: quiet TensorFlow, no accelerator, no worker left behind."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('CUDA_VISIBLE_DEVICES', '')


def pytest_addoption(parser):
  parser.addoption(
    '--kills', type=int, default=4, help='How often tests/trust/test_kills.py kills real runs.'
  )
