"""Finds settings of NVFlare by which data can leave a site without passing a filter.

By default, a client of NVFlare 2.9 streams its error log to the server. A job can also name classes
that send data directly. No filter of task results sees these messages, so the site's filters demand
that `resources.json` disables them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedveil.base.untrusted import MALFORMED, MOST_JOB_BYTES, read_text

#: Packages with classes that send data other than task results.
BYPASSES = (
    "nvflare.app_common.widgets.convert_to_fed_event",
    "nvflare.app_common.logging",
    "nvflare.app_common.streamers",
    "nvflare.app_common.ccwf",
    "nvflare.app_common.psi",
    "nvflare.app_opt.psi",
    "nvflare.app_opt.tracking",
    "nvflare.app_opt.xgboost",
)  # fmt: skip


def open_ways(path: Path) -> list[str]:
    """Return a sentence for each setting to change in `path`, the site's `resources.json`.

    An unreadable file gives a sentence too. The list is empty if only task results can leave the
    site.
    """
    try:
        resources = json.loads(read_text(path, MOST_JOB_BYTES))
    except OSError as error:
        return [f"{path} cannot be read: {error.strerror}"]
    except MALFORMED as error:
        return [f"{path} is no JSON: {error}"]
    return list(_ways(resources)) if isinstance(resources, dict) else [f"{path} is no mapping"]


def _ways(resources: Mapping[str, Any]) -> Iterator[str]:
    if resources.get("allow_log_streaming") is not False:
        yield "set allow_log_streaming to false: logs leave for the server"
    if resources.get("class_list_enforcement_mode", "enforce") != "enforce":
        yield "set class_list_enforcement_mode to enforce"
    allowed = resources.get("class_allow_list")
    if not isinstance(allowed, list):
        yield "write a class_allow_list: the default one has classes that stream metrics and logs"
        allowed = []
    for entry in map(str, allowed):
        found = next((b for b in BYPASSES if _covers(entry, b) or _covers(b, entry)), None)
        if entry == "*" or found:
            yield f"remove {entry} from class_allow_list: it allows {found or 'every class'}"
    components = resources.get("components")
    for component in components if isinstance(components, list) else []:
        path = str(component.get("path", "")) if isinstance(component, dict) else ""
        if any(_covers(bypass, path) for bypass in BYPASSES):
            yield f"remove {path} from components: it sends by itself"


def _covers(prefix: str, path: str) -> bool:
    return path == prefix or path.startswith(f"{prefix.rstrip('.')}.")
