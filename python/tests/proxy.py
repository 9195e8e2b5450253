"""A TCP proxy in front of a server that loses what it is told to lose, as a network does."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards to a port of this machine. `lose(n)` lets the n-th reply from now vanish, and its connection with it;
    `lose_script()` the reply to the next script, which has run; `cut_script()` the next script itself. `dead` refuses
    everybody; `forget()` leaves all connections open and hears nothing of them, as when a host is gone without a word."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.dead = False
        self.lost = 0
        self._until_lost = 0
        self._dies = False
        self._loses_script = self._cuts_script = False
        self._passes = threading.Event()
        self._passes.set()
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self._forgotten: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._passes.set()
        self.break_all()

    def lose(self, nth: int = 1, *, then_dead: bool = False) -> None:
        """The n-th reply from now does not arrive; then nobody is let in, if asked for."""
        with self._lock:
            self._until_lost, self._dies = nth, then_dead

    def lose_script(self) -> None:
        with self._lock:
            self._loses_script = True

    def cut_script(self) -> None:
        with self._lock:
            self._cuts_script = True

    @property
    def is_armed(self) -> bool:
        """Whether what was asked for has yet to happen."""
        return bool(self._until_lost) or self._loses_script or self._cuts_script

    def hold(self, on: bool) -> None:
        """While on, nothing passes and nothing closes; then all of it arrives late."""
        if on:
            self._passes.clear()
        else:
            self._passes.set()

    def break_all(self) -> None:
        """Closes all connections; what was held is lost."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            close(*link)

    def forget(self) -> None:
        """Nothing passes any more on the connections that there are; new ones work."""
        with self._lock:
            self._forgotten |= {client for client, _ in self._links}

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.dead:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._links.append((client, server))
            # Set for a connection whose next reply does not arrive.
            deaf = threading.Event()
            for start in (self._requests, self._replies):
                threading.Thread(target=start, args=(client, server, deaf), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self._passes.wait()
                if self._takes("_cuts_script", is_script(data)):
                    break
                if self._takes("_loses_script", is_script(data)):
                    deaf.set()
                if client not in self._forgotten:
                    server.sendall(data)
        close(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self._passes.wait()
                if self._loses() or deaf.is_set():
                    break
                if client not in self._forgotten:
                    client.sendall(data)
        close(client, server)

    def _takes(self, what: str, fits: bool) -> bool:
        """Whether this is what was asked for: once."""
        with self._lock:
            if not fits or not getattr(self, what):
                return False
            setattr(self, what, False)
            self.lost += 1
            return True

    def _loses(self) -> bool:
        with self._lock:
            if not self._until_lost:
                return False
            self._until_lost -= 1
            if self._until_lost:
                return False
            self.dead, self.lost = self._dies, self.lost + 1
            return True


def is_script(data: bytes) -> bool:
    return b"\r\nEVALSHA\r\n" in data[:64]


def close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
