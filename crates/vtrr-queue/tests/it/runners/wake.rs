//! Hearing that tasks were placed.

use std::time::{Duration, Instant};

use vtrr_queue::{Listener, Queue, Redis, Runner};

use super::{Async, enqueue, queue, socket_url};
use crate::server::{Kind, Server};

const LONG: Duration = Duration::from_secs(30);

/// Whether the listener wakes, rather than giving up.
fn wakes(runner: &Async, listener: &mut Listener, at_most: Duration) -> bool {
    let start = Instant::now();
    runner.0.block_on(listener.wait(at_most));
    start.elapsed() < at_most
}

/// A listener that is connected: it has woken once.
fn listener(runner: &Async, queue: &Queue) -> Listener {
    let mut listener = runner.0.block_on(runner.1.listen(queue)).unwrap();
    assert!(wakes(runner, &mut listener, LONG));
    listener
}

fn hears(redis: Redis, name: &str) {
    let (mut runner, queue) = (Async::new(redis), queue(name));
    let mut listener = listener(&runner, &queue);
    assert!(!wakes(&runner, &mut listener, Duration::from_millis(50)));
    for _ in 0..2 {
        enqueue(&mut runner, &queue, 1);
        assert!(wakes(&runner, &mut listener, LONG), "{name}");
    }
}

#[test]
fn placed_tasks_are_heard_on_every_kind_of_connection() {
    for kind in Kind::ALL {
        let url = Server::shared(kind).url();
        hears(Redis::connect(&url).unwrap(), "wake-async");
        hears(Redis::connect(&format!("{url}?protocol=resp3")).unwrap(), "wake-resp3");
    }
    hears(Redis::connect(&socket_url(Server::shared(Kind::Redis))).unwrap(), "wake-socket");
    let cluster = Server::options(Kind::Redis).cluster().start();
    // The first of these is not there.
    hears(Redis::cluster([format!("redis://127.0.0.1:{}", super::free_port()), cluster.url()]).unwrap(), "{wake}");
}

#[test]
fn a_listener_reconnects_and_wakes_for_what_it_missed() {
    let mut server = Server::options(Kind::Redis).arg("--appendonly", "yes").start();
    let (mut runner, queue) = (Async::new(Redis::connect(&server.url()).unwrap()), queue("q"));
    let mut listener = listener(&runner, &queue);
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    assert!(wakes(&runner, &mut listener, LONG));
    enqueue(&mut runner, &queue, 1);
    assert!(wakes(&runner, &mut listener, LONG));
    server.restart();
    assert!(wakes(&runner, &mut listener, LONG));
    enqueue(&mut runner, &queue, 1);
    assert!(wakes(&runner, &mut listener, LONG));
}

#[test]
fn a_listener_that_cannot_connect_fails_nobody() {
    let mut server = Server::start(Kind::Redis);
    let runner = Async::new(Redis::connect(&server.url()).unwrap());
    server.stop();
    let mut listener = runner.0.block_on(runner.1.listen(&queue("q"))).unwrap();
    assert!(!wakes(&runner, &mut listener, Duration::from_millis(50)));
    server.restart();
    assert!(wakes(&runner, &mut listener, LONG));
}

#[test]
fn on_a_connection_of_the_callers_nothing_is_heard() {
    let client = redis::Client::open(Server::shared(Kind::Redis).url()).unwrap();
    let mut runner = Async::new(Redis::connect_with(client.clone()));
    runner.1 = Redis::from_connection(runner.0.block_on(client.get_multiplexed_async_connection()).unwrap());
    let queue = queue("wake-given");
    let mut listener = runner.0.block_on(runner.1.listen(&queue)).unwrap();
    enqueue(&mut runner, &queue, 1);
    assert!(!wakes(&runner, &mut listener, Duration::from_millis(50)));
}

#[test]
fn a_dropped_listener_unsubscribes() {
    let server = Server::start(Kind::Redis);
    let (runner, queue) = (Async::new(Redis::connect(&server.url()).unwrap()), queue("q"));
    drop(listener(&runner, &queue));
    let start = Instant::now();
    while !server.command(&["PUBSUB", "CHANNELS"]).unwrap().starts_with("*0") {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
}
