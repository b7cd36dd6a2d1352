"""What a component of an experiment does to the guarantee of a private method.

A private method (hook ``privacy``) clips what arrives of each client, adds it up and adds noise. Its privacy loss is bounded if

- what arrives of one client does not depend on who else takes part;
- the model depends on what arrives only through the noisy sum;
- clients take part by chance, as the accountant assumes.

Every component says of itself, in ``private(self, privacy)``, why this fails beside it, and what to use instead; the text is empty
where it holds. Most take one of the two functions below, ``private = alone``. A component without an answer is refused, and a
subclass does not inherit one.
"""

from __future__ import annotations

from fedskew.core.errors import require
from fedskew.core.records import Privacy


def alone(component: object, privacy: Privacy) -> str:
    """What it does to a client's part depends on that client, on chance and on earlier models, not on other clients."""
    return ""


def after_noise(component: object, privacy: Privacy) -> str:
    """What it does to the model depends on the clients only through their noisy sum."""
    return ""


def check_part(method: str, section: str, part: object, privacy: Privacy) -> None:
    """Raise `BadInput` unless the component of a section leaves the method's guarantee as it is."""
    kind, own = type(part).__name__, vars(type(part))
    require(
        "private" in own,
        f"{method} bounds its privacy loss, and {section} {kind} does not say whether that holds beside it; use another, or write "
        f"`private = alone` into {kind} if what it does to one client does not depend on the others (fedskew.core.privacy)",
    )
    reason = own["private"](part, privacy)
    require(not reason, f"{method} bounds its privacy loss, which does not hold here: {reason}")
