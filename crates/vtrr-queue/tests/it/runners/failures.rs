//! Servers that go away, fall silent, refuse or lose what they answered.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use vtrr_queue::{Blocking, Error, ErrorKind, Redis, Result};

use super::{Async, Runs, ack, chain, dequeue, enqueue, enqueued, free_port, queue, tasks, tls_url};
use crate::proxy::Proxy;
use crate::server::{Kind, Server};

/// Long enough for several attempts, short enough to wait for.
const LIMIT: Duration = Duration::from_millis(800);

/// Both runners that reconnect, one after the other.
fn each(url: &str, mut test: impl FnMut(&mut dyn FnMut(Step) -> Result<u64>)) {
    let queue = queue("failures");
    let mut runner = Async::new(Redis::connect(url).unwrap());
    test(&mut |step| step.run(&mut runner, &queue));
    let mut runner = Blocking::connect(url).unwrap();
    test(&mut |step| step.run(&mut runner, &queue));
}

/// Something to do between two accidents.
enum Step {
    /// Enqueues one task.
    Enqueue,
    /// Takes all tasks, settles them, and says how many there were.
    Drain,
    /// How many tasks were ever enqueued.
    Enqueued,
}

impl Step {
    fn run(self, runner: &mut impl Runs, queue: &vtrr_queue::Queue) -> Result<u64> {
        match self {
            Self::Enqueue => runner.run(queue.enqueue("alice", tasks(1)).unwrap()).map(|enqueued| enqueued.ids.len() as u64),
            Self::Drain => {
                let dequeued = dequeue(runner, queue, 100);
                ack(runner, queue, &dequeued);
                Ok(dequeued.deliveries.len() as u64)
            }
            Self::Enqueued => Ok(enqueued(runner, queue)),
        }
    }
}

#[test]
fn a_server_that_forgot_the_scripts_gets_them_again() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        each(&server.url(), |run| {
            for _ in 0..2 {
                run(Step::Enqueue).unwrap();
                server.command(&["SCRIPT", "FLUSH"]).unwrap();
            }
            assert_eq!(run(Step::Drain).unwrap(), 2);
        });
    }
}

#[test]
fn a_connection_that_was_closed_is_replaced() {
    let server = Server::start(Kind::Redis);
    each(&server.url(), |run| {
        for _ in 0..2 {
            run(Step::Enqueue).unwrap();
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        }
        assert_eq!(run(Step::Drain).unwrap(), 2);
    });
}

#[test]
fn a_restart_loses_nothing() {
    let options = Server::options(Kind::Redis).arg("--appendonly", "yes").arg("--appendfsync", "always");
    let mut server = options.start();
    let url = server.url();
    each(&url, |run| {
        run(Step::Enqueue).unwrap();
        server.kill9();
        // It comes back while the call waits.
        std::thread::scope(|scope| {
            scope.spawn(|| server.restart());
            run(Step::Enqueue).unwrap();
        });
        let recovered = Instant::now();
        assert_eq!(run(Step::Drain).unwrap(), 2);
        server.restart();
        assert_eq!(run(Step::Drain).unwrap(), 0);
        assert!(recovered.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_lost_request_or_reply_is_repeated_and_counts_once() {
    let server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port());
    each(&proxy.url(), |run| {
        run(Step::Enqueue).unwrap();
        let before = run(Step::Enqueued).unwrap();
        proxy.drop_next_reply();
        run(Step::Enqueue).unwrap();
        assert!(!proxy.is_armed());
        proxy.cut_before_next_request();
        run(Step::Enqueue).unwrap();
        assert!(!proxy.is_armed());
        assert_eq!(run(Step::Enqueued).unwrap(), before + 2);
    });
}

#[test]
fn a_connection_that_died_in_silence_is_replaced_in_time() {
    let server = Server::start(Kind::Redis);
    for blocking in [false, true] {
        let url = swallow_first(server.port());
        if blocking {
            enqueue(&mut Blocking::connect(&url).unwrap().time_limit(LIMIT), &queue("q"), 1);
        } else {
            enqueue(&mut Async::new(Redis::connect(&url).unwrap().time_limit(LIMIT)), &queue("q"), 1);
        }
    }
}

/// The URL of something that never answers on its first connection, and passes the second on to the server.
fn swallow_first(port: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let _silent = listener.accept().unwrap();
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut requests, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut requests, &mut server));
        let _ = std::io::copy(&mut answers, &mut client);
    });
    url
}

#[test]
fn a_connection_of_the_callers_gets_one_attempt_when_blocking() {
    let server = Server::start(Kind::Redis);
    let mut runner = Blocking::new(redis::Client::open(server.url()).unwrap().get_connection().unwrap());
    let queue = queue("q");
    enqueue(&mut runner, &queue, 1);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let error = runner.run(queue.enqueue("alice", tasks(1)).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let unfinished = error.unfinished().unwrap();
    assert_eq!((unfinished.stored, unfinished.ids.len()), (0, 1));
}

/// Runs one command on each runner that connects to `url`, and checks that its error comes in time.
fn fails_in_time(url: &str) -> Vec<Error> {
    let stats = || queue("{q}").stats();
    let redis = [Redis::connect(url), Redis::sentinel([url], "main"), Redis::cluster([url])];
    let mut errors = Vec::new();
    for redis in redis {
        let mut runner = Async::new(redis.unwrap().time_limit(LIMIT));
        let start = Instant::now();
        errors.push(runner.run(stats()).unwrap_err());
        assert!(start.elapsed() < LIMIT + Duration::from_millis(200), "{:?} {errors:?}", start.elapsed());
    }
    let mut runner = Blocking::connect(url).unwrap().time_limit(LIMIT);
    let start = Instant::now();
    errors.push(runner.run(stats()).unwrap_err());
    assert!(start.elapsed() < LIMIT + Duration::from_millis(200), "{:?} {errors:?}", start.elapsed());
    errors
}

#[test]
fn a_server_that_never_answers_is_given_up_in_time() {
    // Connections wait in its backlog for ever.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    for url in [format!("redis://:s3cret@127.0.0.1:{port}"), format!("rediss://:s3cret@127.0.0.1:{port}")] {
        for error in fails_in_time(&url) {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", chain(&error));
            assert!(!chain(&error).contains("s3cret"), "{}", chain(&error));
        }
    }
}

#[test]
fn a_refused_connection_is_given_up_in_time() {
    for error in fails_in_time(&format!("redis://:s3cret@127.0.0.1:{}", free_port())) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", chain(&error));
        assert!(!chain(&error).contains("s3cret"), "{}", chain(&error));
    }
}

#[test]
fn a_server_that_freezes_between_two_calls_is_given_up_in_time_and_used_again() {
    let mut server = Server::start(Kind::Redis);
    let queue = queue("q");
    let mut runner = Async::new(Redis::connect(&server.url()).unwrap().time_limit(LIMIT));
    let mut blocking = Blocking::connect(&server.url()).unwrap().time_limit(LIMIT);
    enqueue(&mut runner, &queue, 1);
    enqueue(&mut blocking, &queue, 1);
    server.pause();
    let start = Instant::now();
    let errors = [runner.run(queue.stats()).unwrap_err(), blocking.run(queue.stats()).unwrap_err()];
    assert!(start.elapsed() < 2 * LIMIT + Duration::from_millis(400));
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    server.resume();
    assert_eq!(enqueued(&mut runner, &queue), 2);
    assert_eq!(enqueued(&mut blocking, &queue), 2);
}

#[test]
fn a_wrong_password_is_an_answer() {
    let server = Server::options(Kind::Redis).password("right").start();
    let url = server.url().replace("right", "s3cret");
    let start = Instant::now();
    let error = Async::new(Redis::connect(&url).unwrap()).run(queue("q").stats()).unwrap_err();
    assert!(error.kind() == ErrorKind::Server && !chain(&error).contains("s3cret"), "{}", chain(&error));
    let error = Blocking::connect(&url).unwrap().run(queue("q").stats()).unwrap_err();
    assert!(error.kind() == ErrorKind::Server && !chain(&error).contains("s3cret"), "{}", chain(&error));
    assert!(start.elapsed() < Duration::from_secs(2));
    // A cluster client cannot tell it from a node that is away, but says it.
    let error = Async::new(Redis::cluster([&url]).unwrap().time_limit(LIMIT)).run(queue("{q}").stats()).unwrap_err();
    assert!(error.to_string().contains("authentication failed") && !chain(&error).contains("s3cret"), "{}", chain(&error));
    let runner = format!("{:?} {:?}", Redis::connect(&url).unwrap(), Blocking::connect(&url).unwrap());
    assert!(!runner.contains("s3cret"), "{runner}");
    let error = Async::new(Redis::connect(&url.replace(":s3cret@", "")).unwrap()).run(queue("q").stats()).unwrap_err();
    assert!(error.kind() == ErrorKind::Server && error.to_string().contains("wants a password"), "{}", chain(&error));
}

#[test]
fn a_certificate_that_nobody_trusts_is_said() {
    let server = Server::options(Kind::Redis).tls().start();
    let url = tls_url(&server);
    let (url, _) = url.split_once('?').unwrap();
    let errors = [
        Async::new(Redis::connect(url).unwrap().time_limit(LIMIT)).run(queue("q").stats()).unwrap_err(),
        Blocking::connect(url).unwrap().time_limit(LIMIT).run(queue("q").stats()).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("certificate"), "{error}");
    }
}

#[test]
fn full_memory_is_an_answer_and_stores_nothing() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        each(&server.url(), |run| {
            run(Step::Enqueue).unwrap();
            let before = run(Step::Enqueued).unwrap();
            server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
            let error = run(Step::Enqueue).unwrap_err();
            assert!(error.kind() == ErrorKind::Server && error.to_string().contains("OOM"), "{kind:?} {error}");
            assert_eq!(run(Step::Drain).unwrap(), 1);
            assert_eq!(run(Step::Enqueued).unwrap(), before);
            server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        });
    }
}

#[test]
fn a_replica_is_no_server_to_write_to() {
    for kind in Kind::ALL {
        let server = Server::start(kind);
        let mut runner = Async::new(Redis::connect(&server.url()).unwrap().time_limit(LIMIT));
        let queue = queue("q");
        enqueue(&mut runner, &queue, 1);
        server.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]).unwrap();
        let error = runner.run(queue.enqueue("alice", tasks(1)).unwrap()).unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("READONLY"), "{kind:?} {error}");
        server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
        enqueue(&mut runner, &queue, 1);
    }
}

#[test]
fn something_else_on_the_port_is_a_protocol_error() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", other.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut client in other.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            open.push(client);
        }
    });
    let error = Async::new(Redis::connect(&url).unwrap().time_limit(LIMIT)).run(queue("q").stats()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{}", chain(&error));
}
