"""Ways out of an NVFlare client that pass no filter: each must be closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from fedveil.site.nvflare_resources import open_ways
from nvflare_parts import resources

COMMON = "nvflare.app_common"


def ways(folder: Path, content: Any) -> list[str]:
    path = folder / "resources.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return open_ways(path)


def test_closed_resources_are_accepted(tmp_path: Path) -> None:
    streams = [{"id": "resource_manager", "path": f"{COMMON}.resource_managers.gpu.Manager"}]
    assert ways(tmp_path, {**resources("hospital.trainer"), "components": streams}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"allow_log_streaming": True}, "allow_log_streaming"),
        ({"allow_log_streaming": "false"}, "allow_log_streaming"),
        ({"allow_log_streaming": None}, "allow_log_streaming"),
        ({"class_list_enforcement_mode": "warn"}, "class_list_enforcement_mode"),
        ({"class_list_enforcement_mode": None}, "class_list_enforcement_mode"),
        ({"class_allow_list": None}, "write a class_allow_list"),
        ({"class_allow_list": ["*"]}, "it allows every class"),
        ({"class_allow_list": ["nvflare"]}, "remove nvflare"),
        ({"class_allow_list": [COMMON]}, f"remove {COMMON}"),
        ({"class_allow_list": [f"{COMMON}."]}, f"remove {COMMON}"),
        ({"class_allow_list": [f"{COMMON}.ccwf.SwarmClientController"]}, "ccwf"),
        ({"class_allow_list": [f"{COMMON}.logging.job_log_streamer.JobLogStreamer"]}, "logging"),
        (
            {"class_allow_list": [f"{COMMON}.widgets.convert_to_fed_event.ConvertToFedEvent"]},
            "convert_to_fed_event",
        ),
        (
            {"components": [{"path": f"{COMMON}.logging.site_log_streamer.SiteLogStreamer"}]},
            "it sends by itself",
        ),
    ],
)
def test_each_open_way_is_said(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    (found,) = ways(tmp_path, {**resources(), **change})
    assert said in found


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", "[" * 99_999, "\udcff".encode("utf-8", "replace")]
)
def test_resources_that_cannot_be_read_are_open(tmp_path: Path, content: Any) -> None:
    content = content if isinstance(content, str) else content.decode()
    assert len(ways(tmp_path, content)) == 1
    assert len(open_ways(tmp_path / "missing")) == 1
    assert len(open_ways(tmp_path)) == 1


def test_an_empty_mapping_has_two_open_ways(tmp_path: Path) -> None:
    assert len(ways(tmp_path, {})) == 2
