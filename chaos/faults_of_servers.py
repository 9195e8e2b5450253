"""Faults of Redis, of the broker and of the network between. Each is a function of a scene and answers when it was over, in
ns of the monotonic clock."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from celery import Celery
from redis.exceptions import RedisError

from servers import wait_for

from .processes import pause
from .scene import Scene
from .stores import QUEUE, Cluster, Sentinels, Single

now = time.monotonic_ns
# Redis waits 2 s for an fsync that is under way, and then writes; a second more, as its clock for that has whole seconds.
LATE = 3_000_000_000


def single(scene: Scene) -> Single:
    assert isinstance(scene.store, Single)
    return scene.store


# The network.


def cut_request(scene: Scene) -> int:
    """The connection closes before the script is sent."""
    return strike(scene, single(scene).proxy.cut_script)


def lose_reply(scene: Scene) -> int:
    """The connection closes after the script has run and before the reply."""
    return strike(scene, single(scene).proxy.lose_script)


def strike(scene: Scene, arm: Any) -> int:
    arm()
    wait_for(lambda: not single(scene).proxy.is_armed, 20, 0.001)
    return now()


def half_open(scene: Scene) -> int:
    """Nothing passes and nothing closes; then all connections are gone."""
    proxy = single(scene).proxy
    proxy.hold(True)
    scene.sleep(0.5, 3)
    proxy.break_all()
    proxy.hold(False)
    return now()


def late(scene: Scene) -> int:
    """Nothing passes; then everything arrives, late."""
    proxy = single(scene).proxy
    proxy.hold(True)
    scene.sleep(0.5, 3)
    proxy.hold(False)
    return now()


# The store.


def flush_scripts(scene: Scene) -> int:
    scene.store.client().script_flush()
    return now()


def restart(scene: Scene) -> int:
    """kill -9, a moment of nobody there, and the same again out of its file."""
    server = single(scene).server
    server.stop()
    scene.sleep(0, 0.5)
    server.start()
    return now()


def restart_empty(scene: Scene) -> int:
    """Without a file: what was there is gone, and that is all."""
    server = single(scene).server
    server.stop()
    forget(scene, 0)
    server.start()
    return now()


def restart_late(scene: Scene) -> int:
    """It writes its file later than it answers, by up to 2 s: appendfsync everysec on a slow disk."""
    last = now() - LATE
    server = single(scene).server
    server.stop()
    forget(scene, last)
    scene.sleep(0, 0.5)
    server.start()
    return now()


def forget(scene: Scene, since: int) -> None:
    """What was answered since then may be gone."""
    scene.promise.forgets.append((since, now()))
    scene.promise.order = False


def restart_loading(scene: Scene) -> int:
    """It takes its time to load its file, and answers LOADING meanwhile."""
    server = single(scene).server
    options = server.options
    # Per command of the file, in microseconds.
    server.options = (*options, "--key-load-delay", "100")
    server.stop()
    server.start()
    server.options = options
    server.client().config_set("key-load-delay", 0)
    return now()


def read_only(scene: Scene) -> int:
    """It becomes a replica for a moment, and answers READONLY."""
    client = scene.store.client()
    client.replicaof("127.0.0.1", 1)
    scene.sleep(0.2, 1.5)
    client.replicaof("NO", "ONE")
    return now()


def full(scene: Scene) -> int:
    """maxmemory is reached, nothing is evicted, and freed again."""
    client = scene.store.client()
    client.config_set("maxmemory", max(1, int(client.info("memory")["used_memory"] * 0.9)))
    scene.sleep(0.3, 1.5)
    client.config_set("maxmemory", 0)
    return now()


def stall(scene: Scene) -> int:
    """It accepts and does not answer."""
    process = single(scene).server.process
    assert process is not None
    pause(process.pid, scene.random.uniform(0.5, 3))
    return now()


# Failover.


def failover_sentinel(scene: Scene, *, planned: bool = True) -> int:
    """The primary is killed, by plan when its replica has all; it comes back as a replica."""
    store = scene.store
    assert isinstance(store, Sentinels)
    wait_for(store.is_paired, 30)
    old = store.primary()
    if planned:
        client = old.client()
        client.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
        wait_for(store.synchronised, 10, 0.005)
    old.stop()
    if not planned:
        forget(scene, 0)
    wait_for(lambda: store.primary() is not old, 30)
    wait_for(lambda: is_writable(store.primary()), 30)
    over = now()
    old.start()
    wait_for(store.is_paired, 30)
    return over


def failover_unplanned(scene: Scene) -> int:
    return failover_sentinel(scene, planned=False)


def is_writable(server: Any) -> bool:
    with contextlib.suppress(RedisError):
        return bool(server.client().info("replication")["role"] == "master")
    return False


def failover_cluster(scene: Scene) -> int:
    """CLUSTER FAILOVER: the replica takes the slots over when it has all. Redis gives some of them up, after it has let
    all writes wait for 5 s."""
    store = scene.store
    assert isinstance(store, Cluster)
    wait_for(store.is_paired, 30)
    replica = store.replica()

    def taken_over() -> bool:
        """The replica is the primary, and the other one its replica."""
        return store.is_paired() and bool(replica.client().info("replication")["role"] == "master")

    end = time.monotonic() + 60
    while not taken_over() and time.monotonic() < end:
        with contextlib.suppress(RedisError):
            replica.client().execute_command("CLUSTER", "FAILOVER")
        with contextlib.suppress(AssertionError):
            wait_for(taken_over, 6)
    wait_for(store.healthy, 30)
    return now()


# The broker and its tickets.


def purge_tickets(scene: Scene) -> int:
    scene.broker.client(0).delete("vtrr_queue")
    return now()


def empty_broker(scene: Scene) -> int:
    """Also what workers have and have not acknowledged."""
    scene.broker.client(0).flushdb()
    return now()


def restart_broker(scene: Scene) -> int:
    """It is down while tickets are published, and has forgotten all when it comes back."""
    scene.broker.stop()
    scene.sleep(0.5, 2)
    scene.broker.start()
    return now()


def stall_broker(scene: Scene) -> int:
    """It accepts and does not answer."""
    process = scene.broker.process
    assert process is not None
    pause(process.pid, scene.random.uniform(1, 4))
    return now()


def revoke_tickets(scene: Scene) -> int:
    """Every ticket that waits in the broker is revoked."""
    waiting = scene.broker.client(0).lrange("vtrr_queue", 0, -1)
    ids = [json.loads(message)["headers"]["id"] for message in waiting]
    with Celery("chaos", broker=scene.broker.url(0)) as app:
        app.control.revoke(ids)
    return now()


# Tasks in the store.


def remove_payload(scene: Scene) -> int:
    """Somebody deletes the payload of a task that is the next of its partition."""
    client = scene.store.client()
    key = f"vtrr:{QUEUE}:task"
    for _ in range(200):
        if (fields := client.hrandfield(key, 1)) and client.hdel(key, fields[0]):
            scene.promise.doomed[fields[0].decode()] = "payload"
            return now()
        time.sleep(0.01)
    raise AssertionError("no task waits")


def expire_many(scene: Scene) -> int:
    """A worker takes 10,000 tasks and is gone; all leases run out at once."""
    for _ in range(10):
        scene.enqueue("work", 1000)
    taken: set[str] = set()
    owners: list[str] = []
    while len(taken) < 10_000:
        # Each call in another name: what an owner does not name in its next call, it gives back.
        owners.append(f"gone{len(owners)}")
        most = min(1000, 10_000 - len(taken))
        # None runs out before all are taken, however long that takes.
        sent = now()
        deliveries = scene.ask(scene.core.dequeue(most, owner=owners[-1], lease=600, max_deliveries=50))[0]
        for it in deliveries:
            taken.add(it.id)
            scene.ours.note("took", it.id, it.token, it.deliveries, sent)
        if len(deliveries) < most:
            # Workers got some.
            scene.enqueue("work", 1000)
    for owner in owners:
        scene.ask(scene.core.extend_owner(owner, 0.001))
    return now()
