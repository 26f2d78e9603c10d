"""FLOPs of factorisations of matrices and of Fourier transforms, by their leading terms.

Factorisations are those of LAPACK Working Note 41; eigenvalues, singular values and what takes
their vectors are those of Golub and Van Loan, "Matrix Computations". `torch.utils.flop_counter` has
none of them. Counts are of real numbers; of complex ones `count_flops` takes four times as many.
"""

from collections.abc import Callable
from math import log2, prod
from typing import Any

import torch

Formula = Callable[..., int]  # of the arguments of a call, and what it returned as `out_val`
Terms = Callable[[int, int], float]  # of the larger and the smaller side of a matrix


def of_matrix(terms: Terms) -> Formula:
    """Return a formula of the sides of the first argument: a matrix, or a batch of some."""

    def formula(matrix: torch.Tensor, *_: Any, **__: Any) -> int:
        *batch, rows, columns = matrix.shape
        flops: float = prod(batch) * terms(max(rows, columns), min(rows, columns))
        return round(flops)

    return formula


def of_solution(terms: Terms) -> Formula:
    """Return a formula of the side n of a square matrix and the number k of right-hand sides."""

    def formula(matrix: torch.Tensor, right_side: torch.Tensor, *_: Any, **__: Any) -> int:
        *batch, _rows, size = matrix.shape
        num_columns = right_side.shape[-1] if right_side.dim() == matrix.dim() else 1
        return round(prod(batch) * terms(size, num_columns))

    return formula


def cholesky(size: int, _: int) -> float:
    """Count n³ / 3 of a matrix of n rows."""
    return size**3 / 3


def lu(larger: int, smaller: int) -> float:
    """Count n² (m - n / 3) of a matrix of m x n."""
    return smaller**2 * (larger - smaller / 3)


def householder(larger: int, smaller: int) -> float:
    """Count 2 n² (m - n / 3): of the reflections of a QR factorisation, or of their product."""
    return 2 * lu(larger, smaller)


def inverse(size: int, _: int) -> float:
    """Count 2 n³: an LU factorisation, and the inverse from it."""
    return 2 * size**3


def singular_values(larger: int, smaller: int) -> float:
    """Count 4 m n² - 4 n³ / 3: those of a matrix in two diagonals dominate."""
    return 4 * larger * smaller**2 - 4 / 3 * smaller**3


def singular_vectors(larger: int, smaller: int) -> float:
    """Count 14 m n² + 8 n³ with the vectors of both sides (Golub and Reinsch)."""
    return 14 * larger * smaller**2 + 8 * smaller**3


def pseudoinverse(larger: int, smaller: int) -> float:
    """Count the vectors of both sides, and their product."""
    return singular_vectors(larger, smaller) + 2 * larger * smaller**2


def _of_svd(matrix: torch.Tensor, _full: bool = False, compute_uv: bool = True, **_: Any) -> int:
    return of_matrix(singular_vectors if compute_uv else singular_values)(matrix)


def _of_eigh(matrix: torch.Tensor, _triangle: str = "L", compute_v: bool = True, **_: Any) -> int:
    return of_matrix(lambda size, _: (9 if compute_v else 4 / 3) * size**3)(matrix)


def _of_qr(matrix: torch.Tensor, mode: str = "reduced", **_: Any) -> int:
    factor = of_matrix(householder)(matrix)
    if mode == "r":
        return factor
    rows, columns = matrix.shape[-2:]
    if mode == "complete" and rows > columns:  # the product of reflections has all m columns
        batch = prod(matrix.shape[:-2])
        return factor + round(batch * (4 * rows * columns * (rows - columns) + 4 / 3 * columns**3))
    return 2 * factor


def _of_transform(numbers: float, dimensions: list[int], sizes: list[int]) -> float:
    """Count 5 n log2 n for each transform of n complex numbers (Cooley and Tukey)."""
    return 5 * numbers * log2(max(prod(sizes[dimension] for dimension in dimensions), 1))


def _of_complex_transform(values: torch.Tensor, dim: list[int], *_: Any, **__: Any) -> int:
    return round(_of_transform(values.numel(), dim, [*values.shape]) / 4)  # 4 for each complex one


def _of_real_transform(values: torch.Tensor, dim: list[int], *_: Any, **__: Any) -> int:
    return round(_of_transform(values.numel(), dim, [*values.shape]) / 2)


def _of_transform_to_real(
    values: torch.Tensor, dim: list[int], _norm: int, last_dim_size: int, **_: Any
) -> int:
    sizes = [*values.shape]
    sizes[dim[-1]] = last_dim_size
    return round(_of_transform(prod(sizes), dim, sizes) / 2 / 4)


substitution = of_solution(lambda size, count: 2 * size**2 * count)  # with both factors
LINEAR_ALGEBRA: dict[str, Formula] = {
    "aten.linalg_cholesky_ex": of_matrix(cholesky),
    "aten.cholesky": of_matrix(cholesky),
    "aten.cholesky_inverse": of_matrix(lambda size, _: 2 / 3 * size**3),
    "aten.linalg_ldl_factor_ex": of_matrix(cholesky),
    "aten.linalg_lu": of_matrix(lu),
    "aten.linalg_lu_factor_ex": of_matrix(lu),
    "aten._linalg_det": of_matrix(lu),
    "aten._linalg_slogdet": of_matrix(lu),
    "aten.linalg_inv_ex": of_matrix(inverse),
    "aten.linalg_qr": _of_qr,
    "aten.geqrf": of_matrix(householder),
    "aten.linalg_householder_product": of_matrix(householder),
    "aten._linalg_svd": _of_svd,
    "aten.linalg_pinv": of_matrix(pseudoinverse),
    "aten._linalg_eigh": _of_eigh,
    "aten.linalg_eig": of_matrix(lambda size, _: 25 * size**3),
    # Five products of a series, for any norm; squares of a large one are not known.
    "aten.linalg_matrix_exp": of_matrix(lambda size, _: 10 * size**3),
    "aten._linalg_solve_ex": of_solution(lambda size, count: 2 / 3 * size**3 + 2 * size**2 * count),
    "aten.linalg_solve_triangular": of_solution(lambda size, count: size**2 * count),
    "aten.cholesky_solve": lambda right_side, factor, *_, **__: substitution(factor, right_side),
    "aten.linalg_lu_solve": lambda factor, _, right_side, **__: substitution(factor, right_side),
    "aten._fft_c2c": _of_complex_transform,
    "aten._fft_r2c": _of_real_transform,
    "aten._fft_c2r": _of_transform_to_real,
}
