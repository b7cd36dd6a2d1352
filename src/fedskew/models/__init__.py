"""Models by name. Each builds a module that returns (features of the last hidden layer, logits)."""

from fedskew.models.cnn import Cnn, Cnn1d
from fedskew.models.mixed import Mixed
from fedskew.models.mlp import Mlp
from fedskew.models.softmax import Softmax

MODELS = {"softmax": Softmax, "mlp": Mlp, "cnn": Cnn, "cnn1d": Cnn1d, "mixed": Mixed}
