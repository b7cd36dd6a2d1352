"""Models by name. Each builds a module that returns the features (output of the last hidden layer) and the logits."""

from fedskew.models.cnn import Cnn, Cnn1d, LeNet, ResNet
from fedskew.models.encoder import HuggingFaceEncoder, MiniLm
from fedskew.models.mixed import Mixed
from fedskew.models.mlp import Mlp, Softmax
from fedskew.models.sequences import Lstm, SymbolLstm, TextCnn, TextMean, Transformer

MODELS = {
    "softmax": Softmax,
    "mlp": Mlp,
    "cnn": Cnn,
    "lenet": LeNet,
    "resnet18": ResNet,
    "cnn1d": Cnn1d,
    "lstm": Lstm,
    "text-cnn": TextCnn,
    "text-mean": TextMean,
    "symbol-lstm": SymbolLstm,
    "transformer": Transformer,
    "minilm": MiniLm,
    "hf": HuggingFaceEncoder,
    "mixed": Mixed,
}
