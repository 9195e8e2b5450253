"""Where the tasks are: private servers, each on a loopback port and in a folder of its own."""

from __future__ import annotations

import contextlib
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from proxy import Proxy
from servers import RedisServer, free_port, programs, wait_for

KINDS = {"redis 7": "redis", "valkey 8": "valkey", "redis 6.2": "redis62"}
QUEUE = "{chaos}"
# What workers and producers see as one address; `chaos.witness` and the Rust worker read it.
MASTER = "themaster"


def program(kind: str) -> str:
    return programs()[KINDS[kind]]


def server(folder: Path, kind: str, *options: str, cluster: bool = False) -> RedisServer:
    folder.mkdir(parents=True, exist_ok=True)
    # Nodes of a cluster talk to each other on the port 10,000 above.
    port = free_port(22_000) if cluster else None
    return RedisServer(folder, *options, port=port, program=program(kind))


class Store:
    """What is common to all: an address for the processes under test, a client for us past all proxies."""

    def __init__(self) -> None:
        self.stack = ExitStack()

    def __enter__(self) -> Store:
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def start(self) -> None:
        raise NotImplementedError

    @property
    def address(self) -> str:
        raise NotImplementedError

    def client(self) -> Any:
        raise NotImplementedError

    def healthy(self) -> bool:
        try:
            return bool(self.client().set("healthy", 1, px=1000))
        except (RedisError, redis.exceptions.RedisClusterException, OSError):
            return False


class Single(Store):
    """One server behind a proxy."""

    def __init__(self, folder: Path, kind: str, *, fsync: str = "always") -> None:
        super().__init__()
        options = ("--appendonly", "yes", "--appendfsync", fsync) if fsync else ()
        self.server = server(folder / "store", kind, *options)

    def start(self) -> None:
        self.stack.enter_context(self.server)
        self.proxy = self.stack.enter_context(Proxy(self.server.port))
        self._client = self.stack.enter_context(redis.Redis(port=self.server.port, socket_timeout=5))

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.proxy.port}/0"

    def client(self) -> Any:
        return self._client


class Sentinels(Store):
    """A primary, a replica and three Sentinels."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__()
        self.folder, self.kind = folder, kind
        self.nodes = [server(folder / f"node{n}", kind) for n in range(2)]
        self.ports = [free_port() for _ in range(3)]

    def start(self) -> None:
        for node in self.nodes:
            self.stack.enter_context(node)
        self.nodes[1].client().replicaof("127.0.0.1", self.nodes[0].port)
        wait_for(lambda: self.nodes[1].client().info("replication")["master_link_status"] == "up")
        for port in self.ports:
            self.start_sentinel(port)
        wait_for(self.watched)

    def start_sentinel(self, port: int) -> None:
        folder = self.folder / f"sentinel{port}"
        folder.mkdir()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {self.nodes[0].port} 2\n"
            f"sentinel down-after-milliseconds {MASTER} 5000\n"
            f"sentinel failover-timeout {MASTER} 10000\n"
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [program(self.kind), str(config), "--sentinel"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)

    def watched(self) -> bool:
        """Each Sentinel knows the others and the replica."""
        with contextlib.suppress(RedisError):
            states = [redis.Redis(port=port).sentinel_master(MASTER) for port in self.ports]
            return all(state["num-other-sentinels"] == 2 and state["num-slaves"] == 1 for state in states)
        return False

    @property
    def address(self) -> str:
        return f"sentinel:{MASTER}:" + ",".join(f"redis://127.0.0.1:{port}" for port in self.ports)

    def primary(self) -> RedisServer:
        """The server that the Sentinels name."""

        def named() -> RedisServer | None:
            names = set()
            for port in self.ports:
                with contextlib.suppress(RedisError):
                    names.add(redis.Redis(port=port).sentinel_get_master_addr_by_name(MASTER))
            if len(names) != 1:
                return None
            ((_, port),) = names
            return next(node for node in self.nodes if node.port == int(port))

        found: RedisServer = wait_for(named, 30)
        return found

    def client(self) -> Any:
        return self.primary().client(socket_timeout=5)

    def replica(self) -> RedisServer:
        primary = self.primary()
        return next(node for node in self.nodes if node is not primary)

    def is_paired(self) -> bool:
        """The replica follows the primary."""
        return bool(self.replica().client().info("replication").get("master_link_status") == "up")

    def synchronised(self) -> bool:
        """The replica has all that the primary has."""
        primary, replica = (node.client().info("replication") for node in (self.primary(), self.replica()))
        return bool(replica["slave_repl_offset"] == primary["master_repl_offset"])


class Cluster(Store):
    """Three primaries, and a replica of the one that has the queue."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__()
        options = ("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-node-timeout", "2000")
        self.nodes = [server(folder / f"node{n}", kind, *options, cluster=True) for n in range(4)]

    def start(self) -> None:
        for node in self.nodes:
            self.stack.enter_context(node)
        clients = [node.client() for node in self.nodes]
        for number, client in enumerate(clients):
            client.execute_command("CONFIG", "SET", "cluster-require-full-coverage", "no")
            if number < 3:
                first, last = 16384 * number // 3, 16384 * (number + 1) // 3
                client.execute_command("CLUSTER", "ADDSLOTS", *range(first, last))
            if number:
                clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[number].port)
        slot = clients[0].execute_command("CLUSTER", "KEYSLOT", QUEUE)
        owner = slot * 3 // 16384
        owner -= slot < 16384 * owner // 3
        id = clients[owner].execute_command("CLUSTER", "MYID")
        id = id.decode() if isinstance(id, bytes) else id

        def knows() -> bool:
            with contextlib.suppress(RedisError):
                return bool(clients[3].execute_command("CLUSTER", "REPLICATE", id))
            return False

        wait_for(knows, 30)
        self.pair = [self.nodes[owner], self.nodes[3]]
        wait_for(lambda: self.nodes[3].client().info("replication").get("master_link_status") == "up", 30)
        wait_for(self.covered, 30)

    def covered(self) -> bool:
        """Every node says that all is well, and knows all others."""
        infos = [node.client().execute_command("CLUSTER", "INFO", NEVER_DECODE=True) for node in self.nodes]
        return all(b"cluster_state:ok" in info and b"cluster_known_nodes:4" in info for info in infos)

    @property
    def address(self) -> str:
        return "cluster:" + ",".join(f"redis://127.0.0.1:{node.port}" for node in self.nodes)

    def client(self) -> Any:
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port, socket_timeout=5)

    def is_paired(self) -> bool:
        """One of the two is the replica of the other, and follows it."""
        states = [node.client().info("replication") for node in self.pair]
        links = [state.get("master_link_status") for state in states if state["role"] == "slave"]
        return links == ["up"]

    def replica(self) -> RedisServer:
        return next(node for node in self.pair if node.client().info("replication")["role"] == "slave")
