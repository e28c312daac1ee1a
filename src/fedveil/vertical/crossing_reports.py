"""The EmbeddingDP reports that a party sends: drawn for every step, or drawn once and reused.

A report that will be reused is saved before it is sent. After a crash the same report is sent
again, so the example is charged only once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.files import append_synced, append_whole, open_to_append
from fedveil.base.packing import packed_size
from fedveil.base.untrusted import MOST_STATE_BYTES, read_bytes
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import RunFolderError
from fedveil.mechanisms.embedding_dp import EmbeddingDP, Packed
from fedveil.mechanisms.report_memory import ReportMemory
from fedveil.record.run_folder import explained
from fedveil.vertical.split import Crossing
from fedveil.vertical.step import Occasion

_KEY_BYTES = 8


class Reports:
    """Applies EmbeddingDP to a part's output before the output is sent.

    The resulting bits of an example are its report. The reports of a part for one micro-batch have
    their own random stream from `entropy`. For a part with `reuse`, each example's first report is
    saved in `folder` (in memory if None) and returned again later. If `remember` is False, every
    report is drawn anew. `note` receives sentences that no other party may see.
    """

    def __init__(
        self,
        entropy: Entropy,
        folder: Path | None = None,
        note: Callable[[str], None] = lambda sentence: None,
        *,
        remember: bool = True,
    ) -> None:
        self._entropy = entropy
        self._folder = folder
        self._note = note
        self._remember = remember
        self._mechanism = functools.cache(EmbeddingDP)
        self._memories: dict[tuple[str, str], ReportMemory] = {}

    def __call__(
        self, crossing: Crossing, values: npt.NDArray[np.float32], occasion: Occasion
    ) -> Packed:
        assert crossing.privacy is not None, "only a protected crossing is reported"
        if crossing.privacy.eps is not None:
            values = self._numbers(crossing, values)
        mechanism = self._mechanism(crossing.privacy.eps)
        entropy = self._entropy.stream("report", crossing.part, *occasion.path)
        if not (crossing.privacy.reuse and self._remember):
            return mechanism.bits(values, entropy)
        memory = self._memory(crossing, occasion.subset)
        return mechanism.bits_of(occasion.positions, values, entropy, memory)

    def _numbers(self, crossing: Crossing, values: npt.NDArray[np.float32]) -> Any:
        """Return `values`, with all values of an example set to 0 if one of them is NaN.

        So every example gets a report. A malicious peer can return gradients after which a part
        outputs NaN for certain examples. If these examples got no report, the peer would learn
        without any noise which they are. `crossing` names the part, for the log.
        """
        lost = np.isnan(values).reshape(len(values), -1).any(axis=1)
        if lost.any():
            self._note(
                f"{np.count_nonzero(lost)} of {len(values)} examples are reported as "
                f"zeros: the output of {crossing.part} for them is NaN"
            )
            values = values.copy()
            values[lost] = 0
        return values

    def require(self, crossing: Crossing, subset: str, examples: int) -> None:
        """Raise RunFolderError if fewer than `examples` examples of `subset` have a saved report.

        `crossing` names the part whose reports are counted.
        """
        assert self._folder is not None
        path = self._folder / f"reports-{crossing.part}-{subset}"
        size = path.stat().st_size if path.exists() else 0
        if size < examples * (_KEY_BYTES + packed_size(math.prod(crossing.output), 1)):
            raise RunFolderError(
                f"{path} is missing or cut short: it contains the reports that were sent"
            )

    def close(self) -> None:
        for memory in self._memories.values():
            if isinstance(memory, _KeptMemory):
                memory.close()
        self._memories.clear()

    def _memory(self, crossing: Crossing, subset: str) -> ReportMemory:
        place = crossing.part, subset
        memory = self._memories.get(place)
        if memory is None:
            width = packed_size(math.prod(crossing.output), 1)
            memory = ReportMemory(width)
            if self._folder is not None:
                path = self._folder / f"reports-{crossing.part}-{subset}"
                memory = _KeptMemory(width, path, fresh=not isinstance(self._entropy, Seeded))
            self._memories[place] = memory
        return memory


class _KeptMemory(ReportMemory):
    def __init__(self, width: int, path: Path, *, fresh: bool) -> None:
        super().__init__(width)
        self._path = path
        #: Reports from a seed can be drawn again. All others must be on disk before they are sent.
        self._save = append_synced if fresh else append_whole
        record = _KEY_BYTES + width
        raw = read_bytes(path, MOST_STATE_BYTES) if path.exists() else b""
        whole = len(raw) - len(raw) % record  # a killed process may have left an incomplete record
        records = np.frombuffer(raw[:whole], np.uint8).reshape(-1, record)
        keys = np.ascontiguousarray(records[:, :_KEY_BYTES]).view("<i8").reshape(-1)
        self._file: FileIO | None = None
        self.reports(keys, lambda places: records[places, _KEY_BYTES:])
        self._file = open_to_append(path)
        self._file.truncate(whole)

    def reports(self, keys: Any, draw: Callable[[npt.NDArray[np.int64]], Packed]) -> Packed:
        """Return the reports of the examples with the numbers `keys`, one row each.

        Missing reports are drawn and saved. `draw` returns new reports for given indices of `keys`.
        """
        named = np.asarray(keys, "<i8")

        def kept(places: npt.NDArray[np.int64]) -> Packed:
            rows = draw(places)
            if self._file is not None:
                heads = named[places].reshape(-1, 1).view(np.uint8)
                with explained(self._path):
                    self._save(self._file, np.concatenate([heads, rows], axis=1).tobytes())
            return rows

        return super().reports(named, kept)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
