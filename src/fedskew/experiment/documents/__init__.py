"""Parts of documents that need no run store, by the names that a document's file and ``--only`` use."""

from fedskew.experiment.documents.exercise import repeat_exercise
from fedskew.experiment.documents.extra import Repeat
from fedskew.experiment.documents.listing import repeat_listing

EXTRAS: dict[str, Repeat] = {"listing-14.4.1": repeat_listing, "exercise-14.4.3": repeat_exercise}
