"""Components of any kind by name, file or object: of what kind they are, and whether they keep their promises."""

from collections.abc import Iterator
from difflib import get_close_matches

from fedskew.conformance import kinds
from fedskew.conformance.promises import Verdict
from fedskew.conformance.promises import check as check_method
from fedskew.core.catalogue import canonical
from fedskew.core.component import build, parse
from fedskew.core.errors import BadInput
from fedskew.core.fits import fitted, likeness
from fedskew.core.own import MARK, load, module_of
from fedskew.experiment.combinations import COMBINATIONS, with_method
from fedskew.experiment.config import COMPONENTS, Experiment

KINDS = {section: catalogue for section, catalogue in COMPONENTS.items() if catalogue.contracts}
"""The kinds of components that users may write themselves."""


def check(spec: object) -> tuple[str, Iterator[Verdict]]:
    """The kind of a component, and the verdicts on its promises one by one. ``spec`` is a name, a class of a file, or an object.

    Of several components of one name it is the method, else the first in an experiment. Raises `BadInput` if it is no component.
    """
    section = section_of(spec)
    if section != "algorithm":
        return section, kinds.check(section, build(section, KINDS[section], spec))
    experiment = with_method(Experiment(), spec)
    return section, check_method(experiment.algorithm, experiment.server, COMPONENTS["algorithm"])


def section_of(spec: object) -> str:
    """The section of an experiment in which a component stands."""
    if not isinstance(spec, str):
        return kind_of(spec if callable(spec) else type(spec), "check")
    name = parse(spec, "check")[0]
    if MARK in name:
        return kind_of(load(name, "check")[0], name)
    names = {"algorithm": [*COMPONENTS["algorithm"], *COMBINATIONS]} | {
        k: [*c] for k, c in KINDS.items() if k != "algorithm"
    }
    for section, known in names.items():
        if canonical(name, known) in known:
            return section
    near = get_close_matches(name.lower(), [n for known in names.values() for n in known], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`fedskew list algorithms`, `list skews` and so on show all names"
    raise BadInput(f"check: there is no component {name!r}; {hint}")


def kind_of(found: object, what: str) -> str:
    """The kind that a class fits. Raises `BadInput` with what it lacks of the kind that it is most like."""
    refused = {}
    for section, catalogue in KINDS.items():
        if catalogue.adapt(found, what):
            return section
        try:
            fitted(found, catalogue.contracts, catalogue.optional, what)
            return section
        except BadInput as error:
            refused[section] = likeness(found, catalogue.contracts), error
    alike, nearest = max(refused.values(), key=lambda one: one[0])
    if alike:
        raise nearest
    raise BadInput(
        f"{what} is no component: it has no method that fedskew calls; docs/how-to/own-method.md has an example"
    )


def classes_of(file: str) -> dict[str, str]:
    """The components of a file: the kind of each class and function that is defined in it, or why it is none."""
    module, found = module_of(file, "check"), {}
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__ and isinstance(value, type):
            try:
                found[name] = kind_of(value, name)
            except BadInput as error:
                found[name] = str(error)
    return found
