"""A TCP proxy in front of a server that can lose replies, as a network does."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards to a port of this machine. `lose(n)` lets the n-th reply from now vanish, and its connection with it;
    `dead` refuses everybody; `forget()` leaves all connections open and hears nothing of them, as when a host is gone
    without a word."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.dead = False
        self.lost = 0
        self._until_lost = 0
        self._dies = False
        self._forgotten: set[socket.socket] = set()
        self._clients: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def lose(self, nth: int = 1, *, then_dead: bool = False) -> None:
        """The n-th reply from now does not arrive; then nobody is let in, if asked for."""
        with self._lock:
            self._until_lost, self._dies = nth, then_dead

    def forget(self) -> None:
        """Nothing passes any more on the connections that there are; new ones work."""
        with self._lock:
            self._forgotten |= self._clients

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.dead:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.target))
            with self._lock:
                self._clients.add(client)
            for start in (self._requests, self._replies):
                threading.Thread(target=start, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if client not in self._forgotten:
                    server.sendall(data)
        close(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if self._loses():
                    break
                if client not in self._forgotten:
                    client.sendall(data)
        close(client, server)

    def _loses(self) -> bool:
        with self._lock:
            if not self._until_lost:
                return False
            self._until_lost -= 1
            if self._until_lost:
                return False
            self.dead, self.lost = self._dies, self.lost + 1
            return True


def close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
