"""Random numbers of a step are the same on every device."""

import pytest
import torch

from cdcd.diffusion.step_noise import step_noise


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_numbers_of_a_gpu_are_those_of_the_cpu():
    keys, x = torch.arange(5) * 2**59 + 3, torch.zeros(5, 64, 33)
    ours = step_noise(keys, 11, x)
    there = step_noise(keys.cuda(), 11, x.cuda())
    torch.testing.assert_close(there.eps.cpu(), ours.eps, rtol=0, atol=1e-6)
    assert torch.equal(there.u.cpu(), ours.u)
