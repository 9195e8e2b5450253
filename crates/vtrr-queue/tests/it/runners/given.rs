//! Connections that the caller gives, and how long a call is repeated.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Cmd, Pipeline, RedisFuture, Value};
use tokio::time::Instant;
use vtrr_queue::{Command, ErrorKind, Queue, Redis, Runner};

use super::{queue, tasks};
use crate::server::{Kind, Server};

/// A connection that takes every call and never answers. It notes when each came.
#[derive(Clone, Default)]
struct Silent(Arc<Mutex<Vec<Instant>>>);

impl ConnectionLike for Silent {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.lock().unwrap().push(Instant::now());
        Box::pin(std::future::pending())
    }
    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
        unreachable!()
    }
    fn get_db(&self) -> i64 {
        0
    }
}

/// When the calls of a command came to such a connection, and when it was given up, since the first.
async fn attempts(limit: Duration, command: impl Command) -> (Vec<Duration>, Duration) {
    let silent = Silent::default();
    let runner = Redis::from_connection(silent.clone()).time_limit(limit);
    assert_eq!(runner.run(command).await.err().unwrap().kind(), ErrorKind::Unavailable);
    let came = silent.0.lock().unwrap();
    (came.iter().map(|at| *at - came[0]).collect(), came[0].elapsed())
}

/// The server may have run the first of them: it knows the others for 60 s.
#[tokio::test(start_paused = true)]
async fn no_attempt_of_an_enqueue_may_come_when_its_request_is_forgotten() {
    let (queue, minute) = (Queue::new("q").unwrap(), Duration::from_secs(60));
    for seconds in [5, 60, 130, 600, 86_400] {
        let limit = Duration::from_secs(seconds);
        let (came, ended) = attempts(limit, queue.enqueue("a", tasks(1)).unwrap()).await;
        assert!(came.len() >= 2, "within {limit:?}: {came:?}");
        // However late in its time an attempt arrives.
        assert!(ended < minute && ended <= limit, "within {limit:?}: {came:?}, given up after {ended:?}");
        // Others are known by their tokens, or change nothing.
        let (came, ended) = attempts(limit, queue.stats()).await;
        assert!(came.len() >= 2 && ended > limit / 2, "within {limit:?}: {came:?}, given up after {ended:?}");
    }
}

/// Nothing has arrived where there is no connection: the server is waited for.
#[tokio::test(start_paused = true)]
async fn an_enqueue_waits_for_a_server_that_cannot_be_reached_as_long_as_it_may() {
    let began = Instant::now();
    let url = format!("redis://127.0.0.1:{}/", super::free_port());
    let runner = Redis::connect(&url).unwrap().time_limit(Duration::from_secs(300));
    let error = runner.run(Queue::new("q").unwrap().enqueue("a", tasks(1)).unwrap()).await.unwrap_err();
    assert_eq!((error.kind(), error.unfinished().unwrap().stored), (ErrorKind::Unavailable, 0));
    assert!(began.elapsed() > Duration::from_secs(200), "{:?}", began.elapsed());
}

/// Closes every connection of the server but the one that asks.
fn kill_all(server: &Server) {
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
}

#[tokio::test]
async fn a_given_connection_manager_comes_back_to_life() {
    let server = Server::start(Kind::Redis);
    let manager = ConnectionManager::new(redis::Client::open(server.url()).unwrap()).await.unwrap();
    let (runner, queue) = (Redis::from_connection(manager), queue("q"));
    for n in 0..3 {
        runner.run(queue.enqueue("a", tasks(1)).unwrap()).await.unwrap();
        assert_eq!(runner.run(queue.stats()).await.unwrap().queued, n + 1);
        kill_all(&server);
    }
}

#[tokio::test]
async fn a_given_multiplexed_connection_that_was_closed_says_so_and_what_to_give_instead() {
    let server = Server::start(Kind::Redis);
    let client = redis::Client::open(server.url()).unwrap();
    let given = Redis::from_connection(client.get_multiplexed_async_connection().await.unwrap());
    let queue = queue("q");
    given.run(queue.stats()).await.unwrap();
    kill_all(&server);
    for _ in 0..2 {
        let error = given.run(queue.stats()).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
        for word in ["the server is not available", "MultiplexedConnection", "ConnectionManager", "connect_with"] {
            assert!(text.contains(word), "{text}");
        }
    }
    // Its client does it.
    let runner = Redis::connect_with(client);
    for _ in 0..2 {
        runner.run(queue.stats()).await.unwrap();
        kill_all(&server);
    }
}
