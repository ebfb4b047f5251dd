# SPDX-License-Identifier: Apache-2.0
"""Charts in HTML reports: Vega-Lite specifications, and the library that draws them, which is embedded in the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

from markupsafe import Markup

from mcugen.core.cache import Store, cache_folder
from mcugen.core.errors import printable
from mcugen.core.packages import optional_package
from mcugen.reporting.pages import standalone

Chart = dict[str, Any]
"""A Vega-Lite specification as JSON data."""

_PACKAGE = "vl-convert-python"
_EXPOSED = "window.vegaEmbed = vegaEmbed;"

INK = "currentColor"
"""Color of text and lines: the page's text color, light or dark."""
FAINT = "#8886"
"""Color of frames and axes."""

PALETTE = ("#3b82c4", "#d97706", "#2f9e6e", "#a855c7", "#d6455d", "#6b7f94", "#b08900", "#159bb0")
"""Colors of categories, readable on white and on black."""

CONFIG: Chart = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": FAINT},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": FAINT,
        "tickColor": FAINT,
        "gridColor": "#8883",
        "labelLimit": 150,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "orient": "top",
        "columns": 4,
        "labelLimit": 160,
        "symbolBaseFillColor": INK,
    },
    "title": {"color": INK},
    "text": {"color": INK},
    "rule": {"color": INK},
    "range": {"category": list(PALETTE)},
}
"""Vega-Lite configuration of all charts."""


def chart(title: str, spec: Mapping[str, Any]) -> Chart:
    """Return a complete Vega-Lite specification of a chart as wide as the page.

    Args:
        title: Description of the chart for screen readers.
        spec: The specification of the chart's data, marks and axes.
    """
    size: Chart = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    if "vconcat" in spec:  # the page's script knows how wide its parts may be
        size = {}
    return {"description": title, "config": CONFIG, **size, **spec}


def page(template: str, charts: Mapping[str, Chart], **context: Any) -> str:
    """Return a self-contained HTML page with charts.

    Args:
        template: Name of a template in `templates/report`.
        charts: Charts by the name of the template's place for each.
        **context: Variables of the template.
    """
    data = Markup(script_data(dict(charts)))
    scripts = {"vega": vega(), "drawing": "drawing.js", "own": "page.js"}
    return standalone(template, scripts, charts=data, keys=list(charts), **context)


def script_data(value: Any) -> str:
    """Return JSON for a script element, from which no text can break out; without control characters."""
    text = json.dumps(_clean(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _clean(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(element) for element in value]
    return printable(value) if isinstance(value, str) else value


@cache
def vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed of the installed package as one script.

    The script is cached, because it takes seconds to make.
    """
    with optional_package("report", "a chart"):
        key = f"vega-{version(_PACKAGE)}.js"
    store = Store(cache_folder() / "charts")
    known = store.read(key)
    if known is not None:
        return known.decode()
    import vl_convert

    script: str = vl_convert.javascript_bundle(_EXPOSED)
    store.keep(key, script.encode())
    return script
