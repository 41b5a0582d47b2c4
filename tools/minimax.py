"""Derives the polynomials of csrc/ops/math and prints them as they stand there.

Each is a weighted minimax polynomial on an interval, found by Lawson's algorithm: least
squares whose weights grow where the error is large. It also works where some powers are
missing, as they are here, since coefficients are rounded to float32 one by one, lowest
power first, and the others are fitted anew after each; rounding then costs next to
nothing. Needs numpy and mpmath, which torch brings along through sympy:

    python tools/minimax.py           the arrays of math_tpl.h
    python tools/minimax.py normal    the file normal_tables.h
    python tools/minimax.py gates     the arrays of ops/recurrent/gates_tpl.h
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpmath import mp, mpf

mp.dps = 40
N_POINTS = 800
ROUNDS = 400

Function = Callable[[mpf], mpf]


@dataclass
class Fit:
    """A polynomial for f on [low, high]; weight(x) times the error is made small."""

    name: str
    text: str
    f: Function
    weight: Function
    degree: int
    low: float
    high: float


def lawson(basis: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients that make the largest of |basis @ c - values| nearly least."""
    importance = np.full(len(values), 1 / len(values))
    best, least = np.zeros(basis.shape[1]), np.inf
    for _ in range(ROUNDS):
        root = np.sqrt(importance)
        terms = np.linalg.lstsq(basis * root[:, None], values * root, rcond=None)[0]
        errors = np.abs(basis @ terms - values)
        if errors.max() < least:
            best, least = terms, errors.max()
        importance *= errors
        importance /= importance.sum()
    return best


def coefficients(fit: Fit) -> tuple[list[np.float32], float]:
    """float32 coefficients of a fit and the largest weighted error they leave."""
    # Chebyshev's points; an even number of them keeps clear of 0.
    spread = np.cos((2 * np.arange(N_POINTS) + 1) * np.pi / (2 * N_POINTS))
    x = fit.low + (fit.high - fit.low) * (spread + 1) / 2
    weights = np.array([float(abs(fit.weight(mpf(v)))) for v in x])
    left = np.array([float(fit.f(mpf(v))) for v in x]) * weights
    rounded: list[np.float32] = []
    for power in range(fit.degree + 1):
        basis = np.stack([weights * x**p for p in range(power, fit.degree + 1)], axis=1)
        rounded.append(np.float32(lawson(basis, left)[0]))
        left = left - basis[:, 0] * float(rounded[-1])
    return rounded, float(np.abs(left).max())


HALF_LN2 = 0.3466
SQRT_HALF = 0.70711
TANH_SPLIT = 0.5625


FITS = [
    Fit(
        "exp_terms",
        "(exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, relative to exp(r)",
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: r**2 / mp.exp(r),
        4,
        -HALF_LN2,
        HALF_LN2,
    ),
    Fit(
        "log_terms",
        "(log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f < sqrt(2),"
        " relative to log(1 + f)",
        lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3,
        lambda f: f**3 / mp.log1p(f),
        7,
        SQRT_HALF - 1,
        2 * SQRT_HALF - 1,
    ),
    Fit(
        "tanh_terms",
        "(tanh(x) / x - 1) / x^2 in x^2 for |x| < 0.5625, relative to tanh(x) / x",
        lambda s: (mp.tanh(mp.sqrt(s)) / mp.sqrt(s) - 1) / s,
        lambda s: s * mp.sqrt(s) / mp.tanh(mp.sqrt(s)),
        4,
        0,
        TANH_SPLIT**2,
    ),
]


@dataclass
class Table:
    """One polynomial of this degree for each of n_pieces equal pieces of [0, reach]."""

    name: str
    text: str
    f: Function
    n_pieces: int
    degree: int
    reach: float
    last: float = 0


def tail(a: mpf) -> mpf:
    """Integrate the normal distribution beyond a."""
    return mp.erfc(a / mp.sqrt(2)) / 2


def gelu_slope_tail(a: mpf) -> mpf:
    """Differentiate x * tail(-x) at x = -a."""
    return tail(a) - a * mp.exp(-a * a / 2) / mp.sqrt(2 * mp.pi)


def half_normal(a: mpf) -> mpf:
    """Integrate the normal distribution from 0 to a."""
    return mp.erf(a / mp.sqrt(2)) / 2


def half_gelu_slope(a: mpf) -> mpf:
    """Differentiate x * tail(-x) at x = a, less what it is at 0."""
    return mpf(1) / 2 - gelu_slope_tail(a)


TABLES = [
    Table("normal_tail", "the distribution beyond a", tail, 16, 5, 6.0),
    Table("gelu_slope", "gelu'(-a)", gelu_slope_tail, 16, 6, 6.2),
    Table("normal_tail", "the distribution beyond a", tail, 8, 7, 6.0),
    Table("gelu_slope", "gelu'(-a)", gelu_slope_tail, 8, 7, 6.2),
    Table("half_normal", "the distribution from 0 to a", half_normal, 32, 4, 6.0, 0.5),
    Table("half_slope", "gelu'(a) - 1/2", half_gelu_slope, 32, 4, 6.2, 0.5),
]


def pieces(table: Table) -> tuple[float, np.ndarray, float]:
    """Pieces per unit, the coefficients [power, piece], and the largest error.

    Piece n lies around n and the last one is constant, so n_pieces - 1.5 pieces reach.
    """
    per_unit = float(np.float32((table.n_pieces - 1.5) / table.reach))
    terms = np.zeros((table.degree + 1, table.n_pieces), np.float32)
    terms[0, -1] = table.last
    worst = float(abs(table.f(mpf(table.reach)) - table.last))
    for n in range(table.n_pieces - 1):
        fit = Fit(
            "",
            "",
            lambda r, n=n: table.f((n + r) / per_unit),
            lambda r: mpf(1),
            table.degree,
            -0.5 if n else 0.0,
            0.5,
        )
        terms[:, n], error = coefficients(fit)
        worst = max(worst, error)
    return per_unit, terms, worst


TANH_REACH, TANH_DEGREE = 7.9, 4


def tanh_quotient() -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients of p and q in s = x^2, where x p(s) / q(s) is tanh(x); the error.

    The error of the quotient, relative to tanh(x), is that of x p(s) / tanh(x) - q(s),
    which is linear, divided by q(s), for which the round before stands.
    """
    n = 4000
    spread = np.cos((2 * np.arange(n) + 1) * np.pi / (2 * n))
    x = TANH_REACH * (spread + 1) / 2
    z, wanted = (x / TANH_REACH) ** 2, np.tanh(x)
    powers = np.stack([z**k for k in range(TANH_DEGREE + 1)], axis=1)
    basis = np.hstack([powers * (x / wanted)[:, None], -powers[:, 1:]])
    importance, below = np.full(len(x), 1 / len(x)), np.ones(len(x))
    best, least = np.zeros(basis.shape[1]), np.inf
    for _ in range(300):
        root = np.sqrt(importance) / np.abs(below)
        terms = np.linalg.lstsq(basis * root[:, None], root, rcond=None)[0]
        below = 1 + powers[:, 1:] @ terms[TANH_DEGREE + 1 :]
        above = powers @ terms[: TANH_DEGREE + 1]
        errors = np.abs(x * above / below / wanted - 1)
        if errors.max() < least:
            best, least = terms, errors.max()
        importance *= errors
        importance /= importance.sum()
    scale = TANH_REACH ** (2.0 * np.arange(TANH_DEGREE + 1))
    both = best[: TANH_DEGREE + 1], np.hstack([1, best[TANH_DEGREE + 1 :]])
    return both[0] / scale, both[1] / scale, float(least)


def print_gates() -> None:
    """Print the arrays of gates_tpl.h."""
    above, below, error = tanh_quotient()
    print(f"/* relative to tanh(x): 2^{np.log2(error):.1f} */")
    for name, terms in (("above", above), ("below", below)):
        text = ", ".join(f"{np.float32(c):.9g}f" for c in terms)
        print(f"static const float tanh_{name}[] = {{{text}}};")


NORMAL_HEADER = """\
/*
 * normal_tables.h - the normal distribution's tail and GELU's slope, piece by piece.
 *
 * Printed by tools/minimax.py normal, which says how they are derived. Entry [k][n] of
 * the terms is the coefficient of r^k in piece n, where r = a * per_unit - n.
 */
#ifndef PTAC_OPS_MATH_NORMAL_TABLES_H
#define PTAC_OPS_MATH_NORMAL_TABLES_H
"""


def print_normal() -> None:
    """Print normal_tables.h."""
    print(NORMAL_HEADER)
    for table in TABLES:
        per_unit, terms, error = pieces(table)
        n, quality = table.n_pieces, f"absolute: 2^{np.log2(error):.1f}"
        print(f"/* {table.text}, 0 <= a <= {table.reach}, {quality} */")
        print(f"static const float {table.name}_per_unit_{n} = {per_unit:.9g}f;")
        print(f"static const float {table.name}_terms_{n}[{len(terms)}][{n}] = {{")
        for row in terms:
            print("    {" + ", ".join(f"{c:.9g}f" if c else "0" for c in row) + "},")
        print("};\n")
    print("#endif")


def print_terms() -> None:
    """Print every fit as a C array."""
    for fit in FITS:
        terms, error = coefficients(fit)
        print(f"/* {fit.text}: 2^{np.log2(error):.1f} */")
        print(f"static const float {fit.name}[] = {{")
        print("    " + ", ".join(f"{c:.9g}f" for c in terms) + "};")


if __name__ == "__main__":
    if sys.argv[1:] == ["normal"]:
        print_normal()
    elif sys.argv[1:] == ["gates"]:
        print_gates()
    else:
        print_terms()
