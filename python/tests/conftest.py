"""Fixtures: a Redis server of the test run's own, and beds: an app in a module of its own, with real workers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from bed import Bed
from postgres import Postgres
from rabbitmq import RabbitMQ
from servers import RedisServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to be treated badly."""
    folder = tmp_path / "own"
    folder.mkdir()
    with RedisServer(folder) as server:
        yield server


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with RabbitMQ(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of the test's own."""
    with Postgres() as postgres:
        yield postgres


@pytest.fixture
def bed(redis_server: RedisServer, tmp_path: Path) -> Iterator[Bed]:
    """An app without tasks yet; see `Bed`."""
    with Bed(redis_server, tmp_path, f"bed{next(_numbers)}") as bed:
        yield bed
