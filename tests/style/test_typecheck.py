"""The tests check the types and shapes of the first calls of each function."""

import pytest
import torch
import typecheck
from jaxtyping import TypeCheckError

from cdcd.diffusion.process import ProcessConfig, add_noise

X, T = torch.zeros(2, 3, 4), torch.ones(2)


def test_a_wrong_shape_is_an_error():
    add_noise(X, T, X)
    with pytest.raises(TypeCheckError, match="eps"):
        add_noise(X, T, X[:, :2])


def test_so_are_a_wrong_dtype_and_a_wrong_type_of_a_field():
    with pytest.raises(TypeCheckError):
        add_noise(X, T.long(), X)
    with pytest.raises(TypeCheckError):
        ProcessConfig(t_min="1")  # pyright: ignore[reportArgumentType]


def test_only_the_first_calls_of_a_test_are_checked():
    for _ in range(typecheck.CHECKED_CALLS):
        add_noise(X, T, X)
    add_noise(X, T, X[:1])  # broadcasts
    typecheck.check_anew()
    with pytest.raises(TypeCheckError):
        add_noise(X, T, X[:1])
