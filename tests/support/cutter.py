"""A TCP relay between a test's parties that counts bytes and cuts connections on request."""

from __future__ import annotations

import contextlib
import socket
import threading


class Cutter:
    """Relays connections to a port. `cut_after` breaks all of them after a number of bytes."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.carried = 0
        self.cuts = 0
        self._left: int | None = None
        self._over = False  # only one relay thread cuts, not every one that reaches the last byte
        self._sockets: list[socket.socket] = []
        self._frozen: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Cutter:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def freeze(self) -> None:
        """Stop forwarding on all current connections, without closing them."""
        with self._lock:
            self._frozen.update(self._sockets)

    def cut_after(self, count: int) -> None:
        """Forward a number of further bytes, in both directions together, then break all links."""
        with self._lock:
            self._left, self._over = count, False

    def cut(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
            self._left = None
            self.cuts += bool(sockets)
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    here.close()
                    continue
                with self._lock:
                    self._sockets += [here, there]
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._relay, args=ends, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source in self._frozen:
                    continue
                with self._lock:
                    self.carried += len(data)
                    over = False
                    if self._left is not None:
                        short = self._left < len(data)
                        over = short and not self._over
                        self._over |= over
                        data = data[: self._left]
                        self._left -= len(data)
                        if short:  # TCP carries nothing behind a gap
                            self._frozen.add(source)
                try:
                    sink.sendall(data)
                finally:
                    if over:
                        self.cut()
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
