"""Data sets: pooled rows with a test set, loaded by name."""

from fedskew.data.datasets.adult import Adult
from fedskew.data.datasets.digits import Digits
from fedskew.data.datasets.own import Own
from fedskew.data.datasets.synthetic_softmax import SyntheticSoftmax
from fedskew.data.datasets.table import Table
from fedskew.data.datasets.uci_har import UciHar

DATASETS = {
    "digits": Digits,
    "uci-har": UciHar,
    "adult": Adult,
    "synthetic-softmax": SyntheticSoftmax,
    "table": Table,
    "own": Own,
}
