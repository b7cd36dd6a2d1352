"""How far new rows are from training rows: the population stability index of each column."""

import numpy as np

from fedskew.data.preprocessing import Cells


def stability(before: Cells, now: Cells) -> tuple[float, float]:
    """Return the population stability index of a column's cells, and its p value if both are of one population (Yurdakul 2018).

    Bins are tenths of the numbers ``before``, or words; missing values are a bin. Each bin counts half a row more. The index is the
    sum of (q - p) log(q / p) over the bins' shares p and q.
    """
    from scipy.stats import chi2, entropy

    cells = np.concatenate([before, now])
    if cells.dtype == object:
        at = np.unique(cells.astype(str), return_inverse=True)[1]
    else:
        some = np.isfinite(before)
        inner = np.unique(np.quantile(before[some], np.arange(1, 10) / 10)) if some.any() else np.zeros(1)
        at = np.unique(np.where(np.isnan(cells), -1, np.searchsorted(inner, cells)), return_inverse=True)[1]
    p, q = (np.bincount(part, minlength=at.max() + 1) + 0.5 for part in np.split(at, [len(before)]))
    index = float(entropy(p, q) + entropy(q, p))
    return index, float(chi2.sf(index / (1 / len(before) + 1 / len(now)), max(1, at.max())))
