"""The prediction service on a full disk, where it cannot save the number of unknown ids."""

from __future__ import annotations

import asyncio
import errno
import json
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest

from fedveil.errors import RunFolderError
from fedveil.link.streams import Address
from fedveil.record import run_folder
from fedveil.vertical.scoring.http_server import Answer, Request
from fedveil.vertical.scoring.service import PredictionService
from scoring_parts import together, trained


def test_a_count_that_cannot_be_saved_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise only requests with unknown ids would fail, and no restart would know of them."""

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    def predict(one: str) -> Request:
        return Request("POST", "/predict", json.dumps({"id": one}).encode(), None)

    async def ask() -> Answer:
        running = asyncio.create_task(service.run(Address("127.0.0.1", 0), lambda here: None))
        assert (await service.handle(predict("stranger"))).status == 404
        monkeypatch.setattr(run_folder, "write_whole", full)
        answer = await service.handle(predict("other stranger"))
        with pytest.raises(RunFolderError, match="cannot be written: No space left on device"):
            await asyncio.wait_for(running, 30)
        return answer

    with ExitStack() as stack:
        source = together(trained(tmp_path), stack)
        service = PredictionService(source, None)
        answer = asyncio.run(ask())
        monkeypatch.undo()
    assert answer == Answer(503, {"error": "the service cannot count requests"})
    assert service.metrics.unknown == 1
