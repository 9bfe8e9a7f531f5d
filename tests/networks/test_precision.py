"""Memory that is freed is kept."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource
import torch
from cdcd.networks.precision import keep_freed_memory

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.zeros(2**20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = min(new_pages() for _ in range(3))
keep_freed_memory()
new_pages()
print(plain, min(new_pages() for _ in range(3)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left alone")
def test_freed_memory_is_used_again():
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    plain, kept = map(int, done.stdout.split())
    assert kept < plain / 10
