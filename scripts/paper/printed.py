"""The numbers of the paper's four tables, as text, digit for digit as printed.

Text and not floats, because how many digits were printed is part of what is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

# --- the two variance tables ---------------------------------------------------------------------

N: Final = 10_000
"""Number of devices in both tables; the variance is that of a value nobody holds, f = 0."""

LONGITUDINAL, ONE_TIME = "Longitudinal", "One-time"
LABELS: Final = {LONGITUDINAL: "tab:analysis_var", ONE_TIME: "tab:analysis_var_non_long"}
"""The tables' names in the paper's LaTeX source."""


class Budget(NamedTuple):
    """eps_inf and eps_1 as printed; a one-time protocol has only the first."""

    eps_inf: str
    eps_1: str | None = None


@dataclass(frozen=True, slots=True)
class PrintedVariance:
    """One cell. `label` is the budget in the margin, `budget` the one that the number was computed
    for; `k` is None for unary encodings, whose variance does not depend on it."""

    table: str
    label: Budget
    budget: Budget
    protocol: str
    k: int | None
    text: str

    @property
    def column(self) -> str:
        return self.protocol if self.k is None else f"{self.protocol} k={self.k}"


# The keys are the ratio eps_1 / eps_inf of a block.
_LONGITUDINAL: Final = {
    "0.6": """
        0.5 0.30 | 0.001103  0.980969    26706 | 0.004411 0.004436 0.005306 0.005549
        1.0 0.60 | 0.000270  0.125036     3153 | 0.001078 0.001103 0.001234 0.001347
        2.0 1.20 | 0.000062  0.006327      117 | 0.000247 0.000270 0.000264 0.000310
        4.0 2.40 | 0.000011  0.000078  0.25903 | 0.000044 0.000062 0.000045 0.000057
    """,
    "0.5": """
        0.5 0.25 | 0.001592  2.088372    60218 | 0.006367 0.006392 0.007336 0.007611
        1.0 0.50 | 0.000392  0.268074     7198 | 0.001567 0.001592 0.001740 0.001872
        2.0 1.00 | 0.000092  0.013926      281 | 0.000368 0.000392 0.000389 0.000447
        4.0 2.00 | 0.000018  0.000188  0.74088 | 0.000072 0.000092 0.000073 0.000092
    """,
    "0.4": """
        0.5 0.20 | 0.002492  4.530779   135874 | 0.009967 0.009992 0.011012 0.011324
        1.0 0.40 | 0.000617  0.586823    16443 | 0.002467 0.002492 0.002658 0.002812
        2.0 0.80 | 0.000148  0.031552      673 | 0.000593 0.000617 0.000617 0.000690
        4.0 1.60 | 0.000032  0.000484  2.12772 | 0.000127 0.000148 0.000128 0.000156
    """,
    "0.3": """
        0.5 0.15 | 0.004436        10   329836 | 0.017744 0.017769 0.018863 0.019214
        1.0 0.30 | 0.001103  1.398568    40412 | 0.004411 0.004436 0.004620 0.004799
        1.0 0.60 | 0.000270  0.078202     1737 | 0.001078 0.001103 0.001106 0.001198
        2.0 1.20 | 0.000062  0.001389        6 | 0.000247 0.000270 0.000248 0.000291
    """,
    "0.2": """
        0.5 0.10 | 0.009992        30   972656 | 0.039967 0.039992 0.041148 0.041536
        1.0 0.20 | 0.002492  4.080052   120651 | 0.009967 0.009992 0.010190 0.010394
        2.0 0.40 | 0.000617  0.237925     5443 | 0.002467 0.002492 0.002498 0.002610
        4.0 0.80 | 0.000148  0.004939       24 | 0.000593 0.000617 0.000595 0.000659
    """,
    "0.1": """
        0.5 0.05 | 0.039992       154  4941829 | 0.159967 0.159992 0.161191 0.161608
        1.0 0.10 | 0.009992        20   620584 | 0.039967 0.039992 0.040201 0.040424
        2.0 0.20 | 0.002492  1.255550    29356 | 0.009967 0.009992 0.010000 0.010130
        4.0 0.40 | 0.000617  0.030494      156 | 0.002467 0.002492 0.002469 0.002560
    """,
}

# In the block 0.3 the third and fourth rows are labelled (1.0, 0.60) and (2.0, 1.20). Every other
# row has eps_1 = ratio x eps_inf, and only with these budgets do all their numbers come out.
CORRECTED: Final = {
    ("0.3", Budget("1.0", "0.60")): Budget("2.0", "0.60"),
    ("0.3", Budget("2.0", "1.20")): Budget("4.0", "1.20"),
}

_ONE_TIME: Final = """
    0.5 | 0.000392 0.007520 0.243240 | 0.001567 0.001592
    1.0 | 0.000092 0.001108 0.034707 | 0.000368 0.000392
    2.0 | 0.000018 0.000092 0.002522 | 0.000072 0.000092
    4.0 | 0.000002 0.000003 0.000037 | 0.000008 0.000018
"""


def _variances(table: str, text: str, columns: str, ratio: str = "") -> Iterator[PrintedVariance]:
    for line in text.strip().splitlines():
        margin, *groups = line.split("|")
        label = Budget(*margin.split())
        budget = CORRECTED.get((ratio, label), label)
        for column, cell in zip(columns.split(), " ".join(groups).split(), strict=True):
            protocol, _, k = column.partition(":")
            yield PrintedVariance(table, label, budget, protocol, int(k) if k else None, cell)


_COLUMNS: Final = "L-GRR:2 L-GRR:32 L-GRR:1024 L-OSUE L-SUE L-SOUE L-OUE"
VARIANCES: Final = (
    *(
        cell
        for ratio, text in _LONGITUDINAL.items()
        for cell in _variances(LONGITUDINAL, text, _COLUMNS, ratio)
    ),
    *_variances(ONE_TIME, _ONE_TIME, "GRR:2 GRR:32 GRR:1024 OUE SUE"),
)


# --- the two tables of accuracy gains ------------------------------------------------------------

RUNS: Final = 100
"""Every printed gain comes from errors averaged over this many runs."""

REFERENCES: Final = ("L-SUE", "L-OUE")
"""The protocols that ALLOMFREE is compared with, in the order of the columns."""

DATA_SETS: Final = ("nursery", "adult", "ms_fimu", "census_income")


@dataclass(frozen=True, slots=True)
class Half:
    """One data set in one of the tables: by eps_inf the gains over L-SUE and L-OUE, and their
    means. `label` is the table's name in the LaTeX source."""

    data_set: str
    ratio: str
    label: str
    gains: Mapping[str, tuple[str, ...]]
    means: tuple[str, ...]


# Columns as in the paper: U_L-SUE and U_L-OUE for Nursery, Adult, MS-FIMU, Census-Income. The keys
# are the ratio eps_1 / eps_inf of a table.
_GAINS: Final = {
    "0.3": """
        0.5  | 13.51 20.63 | 19.03 27.73 |  3.03  5.43 |  7.84  9.48
        1.0  | 12.36 17.75 | 12.77 20.44 |  1.01 11.57 |  9.21 14.08
        1.5  | 19.95 25.86 |  8.47 18.01 |  4.13 11.55 |  5.82 12.92
        2.0  | 17.18 33.24 |  4.11 17.16 | 13.22 23.44 | 10.06 20.41
        2.5  | 20.70 35.40 | 11.93 22.54 | 10.41 22.25 | 12.77 23.15
        3.0  | 28.69 42.98 |  8.35 28.22 | 13.07 21.56 | 17.07 26.21
        3.5  | 36.19 54.02 | 18.97 32.02 | 14.78 29.10 | 22.02 30.96
        4.0  | 41.24 57.16 | 19.81 34.25 | 20.38 29.64 | 24.99 35.60
        Mean | 23.73 35.88 | 12.93 25.05 | 10.00 19.32 | 13.72 21.60
    """,
    "0.6": """
        0.5  | 17.82 38.84 | 10.42 27.46 |  6.41 24.79 |  5.65 21.61
        1.0  | 14.99 38.97 |  9.83 25.14 |  2.97 23.32 |  9.79 25.46
        1.5  | 15.88 41.05 | 12.90 28.59 | 16.00 30.52 | 11.88 28.05
        2.0  | 27.52 54.69 | 12.95 33.78 | 14.81 35.65 | 18.45 32.31
        2.5  | 39.59 60.96 | 23.28 38.50 | 17.71 35.34 | 24.89 39.11
        3.0  | 40.64 65.32 | 28.59 47.95 | 27.26 40.97 | 36.12 44.48
        3.5  | 44.39 68.73 | 34.85 50.00 | 33.69 50.94 | 40.01 48.18
        4.0  | 42.24 71.13 | 45.26 58.33 | 41.83 59.47 | 45.85 54.44
        Mean | 30.38 54.96 | 22.26 38.72 | 20.08 37.62 | 24.08 36.70
    """,
}


def _half(ratio: str, column: int) -> Half:
    lines = [line.split("|") for line in _GAINS[ratio].strip().splitlines()]
    gains = {groups[0].strip(): tuple(groups[1 + column].split()) for groups in lines}
    means = gains.pop("Mean")
    label = f"tab:utility_results_{ratio.replace('.', '')}"
    return Half(DATA_SETS[column], ratio, label, gains, means)


HALVES: Final = tuple(_half(ratio, column) for ratio in _GAINS for column in range(len(DATA_SETS)))
"""Eight: the four data sets at eps_1 = 0.3 eps_inf, then at 0.6 eps_inf."""
