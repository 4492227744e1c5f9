"""Shared by all tests: quiet TensorFlow, no accelerator, no worker left behind."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('CUDA_VISIBLE_DEVICES', '')
