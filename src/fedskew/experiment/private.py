"""With a method that bounds its privacy loss, each part of the experiment must say that it keeps this bound."""

import dataclasses

from fedskew.core.errors import require
from fedskew.core.privacy import check_part
from fedskew.experiment.config import GIVEN, SEVERAL, Experiment
from fedskew.measure.privacy import check_installed


def check_private(experiment: Experiment, method: str) -> None:
    """Raise `BadInput` if the method bounds its privacy loss, and a part of the experiment breaks the bound or does not say.

    The parts are all fields of `Experiment` except the algorithm and fields marked `GIVEN`.
    """
    algorithm = experiment.algorithm
    privacy = algorithm.contract().privacy
    if privacy is None:
        return
    kind = type(algorithm).__name__
    require(
        privacy.by is type(algorithm),
        f"{method} inherits its privacy loss; give {kind} a method `contract` of its own, with privacy by={kind} if its hooks "
        "keep the guarantee, else without privacy",
    )
    for field in dataclasses.fields(experiment):
        if field.name == "algorithm" or field.metadata == GIVEN:
            continue
        held = getattr(experiment, field.name)
        for part in held if field.name in SEVERAL else [held]:
            check_part(method, field.name, part, privacy)
    if privacy.noise:
        check_installed()
