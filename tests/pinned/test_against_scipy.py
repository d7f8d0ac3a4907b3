"""The statistics of the package against scipy's, where it has the same function."""

from array import array

import numpy as np
import pytest

from kernelderby.statistics import student
from kernelderby.statistics.means import geometric_mean
from kernelderby.statistics.rank_test import holm, mann_whitney, signed_rank_interval


@pytest.fixture(scope="module")
def stats():
    """Imported where these tests run alone: it takes seconds, and every process of tests collects this file."""
    return pytest.importorskip("scipy.stats")


def test_students_quantiles_are_scipys(stats):
    for freedom in range(1, 31):
        assert student.quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)
    for freedom in (31, 40, 100, 1000):
        assert student.quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


def test_geometric_means_are_scipys(stats):
    values, weights = [0.5, 3.0, 7.0], [1.0, 2.0, 0.5]
    assert geometric_mean(values) == pytest.approx(stats.gmean(values))
    assert geometric_mean(values, weights) == pytest.approx(stats.gmean(values, weights=weights))


@pytest.mark.parametrize("ties", [1, 7])
def test_mann_whitneys_chance_is_scipys(ties, stats):
    random = np.random.default_rng(ties)
    for _ in range(20):
        one, two = (random.integers(0, 50, random.integers(5, 40)) // ties * ties for _ in range(2))
        wanted = stats.mannwhitneyu(one, two, alternative="two-sided", method="asymptotic", use_continuity=True)
        assert mann_whitney(array("q", one.tolist()), array("q", two.tolist())) == pytest.approx(wanted.pvalue)


def test_signed_rank_intervals_end_where_the_test_decides(stats):
    """The interval holds each shift that the exact test does not refuse."""
    random = np.random.default_rng(3)
    for count in (6, 15, 48):
        values, alpha = random.normal(0.3, 1, count), 0.02
        low, _, high = signed_rank_interval(values.tolist(), alpha)
        for shift, way in (
            (low - 1e-9, "greater"),
            (low + 1e-9, "greater"),
            (high - 1e-9, "less"),
            (high + 1e-9, "less"),
        ):
            found = stats.wilcoxon(values - shift, alternative=way, method="exact")
            assert (found.pvalue <= alpha) == (not low < shift < high)


def test_holm_by_hand():
    """Wright, "Adjusted p-values for simultaneous inference", Biometrics 48 (1992), its way on four chances."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
