//! A server that deletes keys when it is full: the worker warns of it, and works.

use std::time::Duration;

use vtrr_queue::{Memory, Queue, Redis, Runner, Worker};

use crate::secrets::Log;
use crate::server::{Kind, Server};

#[tokio::test]
async fn what_the_server_does_when_full_is_known_where_it_may_be_asked() {
    let queue = Queue::new("q").unwrap();
    assert_eq!(Memory::new().run(queue.eviction()).await.unwrap().as_deref(), Some("noeviction"));
    for kind in Kind::ALL {
        let server = Server::options(kind).arg("--maxmemory-policy", "volatile-ttl").start();
        let rights = ["ACL", "SETUSER", "some", "reset", "on", ">pw", "~*", "&*", "+@all", "-info"];
        assert_eq!(server.command(&rights).unwrap(), "+OK\r\n");
        for (login, policy) in [("", Some("volatile-ttl")), ("some:pw@", None)] {
            let redis = Redis::connect(&server.url().replace("//", &format!("//{login}"))).unwrap();
            assert_eq!(redis.run(queue.eviction()).await.unwrap().as_deref(), policy, "{kind:?}");
        }
    }
}

/// What a worker says until it has swept often.
async fn log_of_a_worker(server: &Server, login: &str) -> String {
    let log = Log::default();
    let _logging = log.begin();
    let queue = Queue::new("q").unwrap();
    let redis = Redis::connect(&server.url().replace("//", &format!("//{login}"))).unwrap();
    let worker = Worker::builder(queue.clone(), redis.clone()).sweep_interval(Duration::from_millis(5)).build().unwrap();
    let until = tokio::time::sleep(Duration::from_millis(500));
    worker.run_until(until).await.unwrap();
    log.text()
}

#[tokio::test]
async fn a_worker_warns_once_of_a_server_that_may_delete_tasks() {
    for (policy, warns) in [("noeviction", 0), ("volatile-lru", 0), ("allkeys-lru", 1), ("allkeys-random", 1)] {
        let server = Server::options(Kind::Redis).arg("--maxmemory-policy", policy).start();
        let log = log_of_a_worker(&server, "").await;
        let warning = format!("WARN vtrr_queue::worker::eviction: maxmemory-policy {policy} may delete tasks");
        assert_eq!(log.matches(&warning).count(), warns, "{log}");
        assert!(log.contains("the worker stops"), "{log}");
    }
    let server = Server::options(Kind::Redis).arg("--maxmemory-policy", "allkeys-lru").start();
    server.command(&["ACL", "SETUSER", "some", "on", ">pw", "~*", "&*", "+@all", "-info"]).unwrap();
    let log = log_of_a_worker(&server, "some:pw@").await;
    assert!(log.contains("the worker stops") && !log.contains("WARN") && !log.contains("ERROR"), "{log}");
}
