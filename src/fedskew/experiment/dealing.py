"""The part of an experiment that decides which client has which rows. Importing it loads no PyTorch."""

from dataclasses import dataclass, field
from typing import Protocol, cast

from fedskew.core.component import Catalogue
from fedskew.core.sites import Harmonisation
from fedskew.data import DATASETS
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.digits import Digits
from fedskew.data.find import Files
from fedskew.experiment.settings import Clients, ServerData, SharedData
from fedskew.skew import LabelDirichlet, Natural
from fedskew.skew.compose import Skew

GIVEN = {"private": "given"}
"""Marks fields of an experiment that have no effect after training begins. A privacy loss covers the rounds only."""


class DataSource(Protocol):
    """A data set by name and options."""

    @property
    def model(self) -> str:
        """The model that suits these data, in compact form."""
        ...

    def load(self) -> Dataset: ...


KNOWN_DATA = Catalogue("datasets", DATASETS, DataSource)


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """A data set, what deals and changes its rows, and the shares of the clients, the server and the public."""

    dataset: DataSource = field(default_factory=Digits, metadata=GIVEN)
    skew: tuple[Skew, ...] = field(default=cast("tuple[Skew, ...]", None), metadata=GIVEN)
    clients: Clients = field(default_factory=Clients)
    server_data: ServerData = field(default_factory=ServerData)
    shared_data: SharedData = field(default_factory=SharedData)
    harmonisation: Harmonisation | None = None


def default_skew(dataset: DataSource) -> Skew:
    """Return ``natural`` if the data set has clients of its own: by a column, by files, or by its nature.

    Otherwise return label skew.
    """
    files = getattr(dataset, "files", None)
    of_rows = any(getattr(dataset, name, None) for name in ("client", "client_from", "file_a_client"))
    has_clients = bool(of_rows or (isinstance(files, Files) and files.natural))
    return Natural() if has_clients else LabelDirichlet(alpha=0.1)
