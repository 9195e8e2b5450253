"""Redis clients of every form that users pass to VTRRQueue, and the servers they need."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fakeredis  # noqa: F401 - the sources of forms use it
import redis
from redis.backoff import NoBackoff  # noqa: F401
from redis.retry import Retry  # noqa: F401
from redis.sentinel import Sentinel

from servers import RedisServer, free_port, redis_program, wait_for

_names = itertools.count(1)


def make_certificates(folder: Path) -> None:
    """ca.pem, and server.pem with server.key for 127.0.0.1."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, stdin=subprocess.DEVNULL, capture_output=True)

    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    openssl(*new, "-subj", "/CN=test ca", "-keyout", "ca.key", "-out", "ca.pem", "-addext", "keyUsage=keyCertSign")
    by_ca = ["-CA", "ca.pem", "-CAkey", "ca.key"]
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl("x509", "-req", "-in", "server.csr", *by_ca, "-days", "2", "-extfile", "names", "-out", "server.pem")


class Servers:
    """A plain server that also has TLS, a unix socket and users; a Sentinel that watches it; a cluster of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls_port = free_port()
        self.sentinel_port = free_port()
        # Paths of sockets must be short.
        self.socket = folder / "s"
        make_certificates(folder)
        self.plain = RedisServer(
            folder,
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", "no", "--tls-ca-cert-file", "ca.pem"),
            *("--tls-cert-file", "server.pem", "--tls-key-file", "server.key"),
            *("--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--user", "app", "on", ">secret", "~vtrr:*", "&vtrr:*", "+@all", "-@dangerous"),
        )
        (folder / "cluster").mkdir()
        # Nodes talk to each other on the port 10,000 above.
        self.cluster = RedisServer(folder / "cluster", "--cluster-enabled", "yes", port=free_port(22_000))
        self.sentinel: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[Servers]:
        with ExitStack() as stack:
            stack.enter_context(self.plain)
            stack.enter_context(self.cluster)
            stack.callback(self.stop_sentinel)
            self.start_sentinel()
            node = self.cluster.client()
            node.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            wait_for(lambda: b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO", NEVER_DECODE=True))
            node.close()
            yield self

    def start_sentinel(self) -> None:
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.sentinel_port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor themaster 127.0.0.1 {self.plain.port} 1\n"
        )
        with (self.folder / "sentinel.log").open("wb") as log:
            self.sentinel = subprocess.Popen(
                [redis_program(), str(config), "--sentinel"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

        def found() -> bool:
            try:
                return bool(Sentinel([("127.0.0.1", self.sentinel_port)]).discover_master("themaster"))
            except redis.RedisError:
                return False

        wait_for(found)

    def stop_sentinel(self) -> None:
        if self.sentinel is not None:
            self.sentinel.kill()
            self.sentinel.wait()


@dataclass
class Form:
    """A form of client: Python that makes it, with `servers` and `redis` at hand, and the name of the queue."""

    source: str
    braces: bool = False

    def queue_name(self) -> str:
        name = f"ünï{next(_names)}"
        return f"{{{name}}}" if self.braces else name

    def make(self, servers: Servers) -> Any:
        return eval(self.source, globals() | places(servers))


def places(servers: Servers) -> dict[str, Any]:
    """Where the servers are: what the sources of forms need, also in a worker."""
    return {
        "port": servers.plain.port,
        "tls": {"port": servers.tls_port, "ssl": True, "ssl_ca_certs": str(servers.folder / "ca.pem")},
        "socket": str(servers.socket),
        "sentinels": [("127.0.0.1", servers.sentinel_port)],
        "cluster_port": servers.cluster.port,
    }


def django_connection(port: int) -> Any:
    from django.conf import settings

    location = f"redis://127.0.0.1:{port}/3"
    if not settings.configured:
        settings.configure(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}})
    from django_redis import get_redis_connection

    return get_redis_connection("default")


FORMS: dict[str, Form] = {
    "plain": Form("redis.Redis(port=port, db=3)"),
    "strict": Form("redis.StrictRedis(port=port, db=3)"),
    "from_url": Form("redis.from_url(f'redis://127.0.0.1:{port}/3')"),
    "decoding": Form("redis.Redis(port=port, db=3, decode_responses=True)"),
    "latin-1": Form("redis.Redis(port=port, db=3, decode_responses=True, encoding='latin-1')"),
    "ascii strict": Form("redis.Redis(port=port, db=3, decode_responses=True, encoding='ascii')"),
    "unix socket": Form("redis.Redis(unix_socket_path=socket, db=3)"),
    "tls": Form("redis.Redis(**tls, db=3)"),
    "user": Form("redis.Redis(port=port, username='app', password='secret')"),
    "user decoding, RESP3": Form("redis.Redis(port=port, username='app', password='secret', protocol=3, decode_responses=True)"),
    "RESP2": Form("redis.Redis(port=port, db=3, protocol=2)"),
    "RESP3": Form("redis.Redis(port=port, db=3, protocol=3)"),
    "RESP3 decoding": Form("redis.Redis(port=port, db=3, protocol=3, decode_responses=True)"),
    "retries": Form("redis.Redis(port=port, db=3, retry=Retry(NoBackoff(), 3), retry_on_timeout=True)"),
    "one connection": Form("redis.Redis(connection_pool=redis.ConnectionPool(port=port, db=3, max_connections=1))"),
    "one blocking connection": Form(
        "redis.Redis(connection_pool=redis.BlockingConnectionPool(port=port, db=3, max_connections=1))"
    ),
    "single connection client": Form("redis.Redis(port=port, db=3, single_connection_client=True)"),
    "sentinel": Form("Sentinel(sentinels).master_for('themaster', db=3)"),
    "sentinel decoding": Form("Sentinel(sentinels).master_for('themaster', db=3, decode_responses=True)"),
    "cluster": Form("redis.RedisCluster(host='127.0.0.1', port=cluster_port)", braces=True),
    "cluster decoding": Form("redis.RedisCluster(host='127.0.0.1', port=cluster_port, decode_responses=True)", braces=True),
    "cluster RESP3": Form("redis.RedisCluster(host='127.0.0.1', port=cluster_port, protocol=3)", braces=True),
    "django-redis": Form("django_connection(port)"),
    "fake": Form("fakeredis.FakeRedis()"),
    "fake strict": Form("fakeredis.FakeStrictRedis()"),
    "fake decoding": Form("fakeredis.FakeRedis(decode_responses=True)"),
    "fake RESP2": Form("fakeredis.FakeRedis(protocol=2)"),
    "fake RESP3": Form("fakeredis.FakeRedis(protocol=3)"),
    "fake server": Form("fakeredis.FakeRedis(server=fakeredis.FakeServer(version=(6, 2)), decode_responses=True)"),
}

Maker = Callable[[], Any]
