"""Data sets by name. Each has pooled training rows and a test set."""

from fedskew.data.datasets.adult import Adult
from fedskew.data.datasets.beijing_air import BeijingAir
from fedskew.data.datasets.heart import Heart
from fedskew.data.datasets.hugging_face import HuggingFaceData
from fedskew.data.datasets.images import Cifar10, Cifar100, Digits, FashionMnist, Mnist
from fedskew.data.datasets.labelled_texts import AgNews, BitextRetail, BitextSupport, Newsgroups
from fedskew.data.datasets.leaf import Femnist, LeafFolder
from fedskew.data.datasets.long_texts import Shakespeare, TextData
from fedskew.data.datasets.own import OwnData
from fedskew.data.datasets.patients import Parkinsons, TcgaBrca
from fedskew.data.datasets.synthetic import Synthetic, SyntheticSoftmax
from fedskew.data.datasets.table import TableData
from fedskew.data.datasets.uci_har import UciHar

DATASETS = {
    "digits": Digits,
    "heart": Heart,
    "cifar-10": Cifar10,
    "cifar-100": Cifar100,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "femnist": Femnist,
    "uci-har": UciHar,
    "ag-news": AgNews,
    "20-newsgroups": Newsgroups,
    "bitext-support": BitextSupport,
    "bitext-retail": BitextRetail,
    "adult": Adult,
    "parkinsons": Parkinsons,
    "beijing-air": BeijingAir,
    "shakespeare": Shakespeare,
    "tcga-brca": TcgaBrca,
    "synthetic-softmax": SyntheticSoftmax,
    "synthetic": Synthetic,
    "hf": HuggingFaceData,
    "leaf": LeafFolder,
    "table": TableData,
    "text": TextData,
    "own": OwnData,
}
