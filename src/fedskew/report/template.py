"""Renders the HTML pages from the templates in this folder. All of them extend ``base.html``."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib.resources import files


def rendered(
    template: str,
    filters: Mapping[str, Callable[..., object]],
    script_file: str = "chart.js",
    /,
    live: bool = False,
    **values: object,
) -> str:
    """Render a page from its template, with the style sheet, the script and the script's hash. A ``live`` page reloads itself."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fedskew", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    css, script = ((files("fedskew.report") / name).read_text(encoding="utf-8") for name in ("page.css", script_file))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        css=Markup(css), script=Markup(script), digest=digest, live=live, **values
    )
