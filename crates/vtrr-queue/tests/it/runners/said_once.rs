//! Errors as `{:#}` of anyhow shows them, with all their sources: each thing is said once.

use std::time::Duration;

use anyhow::Error as Any;
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Blocking, Error, Partition, Redis, Retry, Task, TaskId};

use super::{Async, Runs, free_port, queue, tasks};
use crate::server::{Kind, Server};

const LIMIT: Duration = Duration::from_millis(200);

/// What stands between colons and full stops, in small letters: no part may come twice, whole.
fn said_twice(text: &str) -> Option<String> {
    let parts: Vec<_> = text.split(": ").map(|part| part.trim().to_lowercase()).collect();
    let twice = |i: usize| parts[i].len() > 3 && parts[i + 1..].iter().any(|later| later.contains(&parts[i]));
    (0..parts.len()).find(|i| twice(*i)).map(|i| parts[i].clone())
}

#[test]
fn an_error_says_one_thing_once() {
    let mut server = Server::start(Kind::Redis);
    let refused = || format!("redis://127.0.0.1:{}/", free_port());
    let mut errors: Vec<Error> = vec![
        Async::new(Redis::connect(&refused()).unwrap().time_limit(LIMIT)).run(queue("q").stats()).unwrap_err(),
        Blocking::connect(&refused()).unwrap().time_limit(LIMIT).run(queue("q").stats()).unwrap_err(),
        Redis::connect("http://host").unwrap_err(),
        Redis::connect("rediss://host/?ssl_ca_certs=/missing").unwrap_err(),
        Partition::new("").unwrap_err(),
        TaskId::new("x".repeat(600)).unwrap_err(),
        Task::new("t", &std::collections::HashMap::from([((1, 2), 3)])).unwrap_err(),
    ];
    server.command(&["SET", "vtrr:q:meta", "text"]).unwrap();
    errors.push(
        Async::new(Redis::connect(&server.url()).unwrap()).run(queue("q").enqueue("a", tasks(1)).unwrap()).unwrap_err(),
    );
    server.command(&["CONFIG", "SET", "requirepass", "x"]).unwrap();
    errors.push(Async::new(Redis::connect(&server.url()).unwrap()).run(queue("q").stats()).unwrap_err());
    server.kill9();
    errors.push(Async::new(Redis::connect(&server.url()).unwrap().time_limit(LIMIT)).run(queue("q").stats()).unwrap_err());
    // One that accepts and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", silent.local_addr().unwrap());
    errors.push(Async::new(Redis::connect(&url).unwrap().time_limit(LIMIT)).run(queue("q").stats()).unwrap_err());
    for error in errors {
        let short = error.to_string();
        let text = format!("{:#}", Any::from(error));
        assert_eq!((said_twice(&text), &text), (None, &short));
    }
}

#[test]
fn a_retry_says_one_thing_once() {
    for retry in [Retry::later(), Retry::after(LIMIT), Retry::later().because("the server is down")] {
        let text = format!("{:#}", Any::from(retry));
        assert_eq!(said_twice(&text), None, "{text}");
    }
    let text = format!("{:#}", Any::from(Retry::after(LIMIT).because("the server is down")));
    assert_eq!(text, "a retry was asked for: after 200ms: the server is down");
    let boxed: BoxError = Retry::later().into();
    assert_eq!(boxed.to_string(), "a retry was asked for");
}
