//! Failover under Redis Sentinel.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vtrr_queue::{Redis, Runner};

use super::{Async, ack, dequeue, enqueue, enqueued, free_port, queue};
use crate::server::{Kind, Server};

/// A Sentinel process that watches a master. Gone with its test, however that ends.
pub(super) struct Sentinel {
    port: u16,
    guard: Child,
    _dir: tempfile::TempDir,
}

impl Sentinel {
    pub(super) const MASTER: &str = "main";

    pub(super) fn of(master: &Server) -> Self {
        let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
        let file = dir.path().join("sentinel.conf");
        let name = Self::MASTER;
        let config = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nlogfile log\nsentinel monitor {name} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 2000\n",
            dir.path().display(),
            master.port(),
        );
        fs::write(&file, config).unwrap();
        // The shell kills it when our end of its input closes.
        let guard = Command::new("sh")
            .args(["-c", r#""$1" "$2" --sentinel & cat; kill -9 $!"#, "guard"])
            .arg(Kind::Redis.program())
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let sentinel = Self { port, guard, _dir: dir };
        sentinel.wait_for(|masters| masters.contains(&("port".to_owned(), master.port().to_string())));
        sentinel
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Waits until what Sentinel says of the master is as it should be.
    pub(super) fn wait_for(&self, ready: impl Fn(&[(String, String)]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let client = redis::Client::open(self.url()).unwrap();
        let master = || {
            let mut connection = client.get_connection().ok()?;
            redis::cmd("SENTINEL").arg("MASTER").arg(Self::MASTER).query::<Vec<(String, String)>>(&mut connection).ok()
        };
        loop {
            let said = master();
            if said.as_ref().is_some_and(|fields| ready(fields)) {
                return;
            }
            assert!(Instant::now() < deadline, "{said:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

#[test]
fn work_goes_on_after_a_failover() {
    let mut master = Server::start(Kind::Redis);
    let replica = Server::start(Kind::Redis);
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).unwrap();
    let sentinel = Sentinel::of(&master);
    sentinel.wait_for(|fields| fields.contains(&("num-slaves".to_owned(), "1".to_owned())));
    // The failover itself takes Sentinel some seconds.
    let redis = Redis::sentinel([sentinel.url()], Sentinel::MASTER).unwrap().time_limit(Duration::from_secs(30));
    let mut runner = Async::new(redis);
    let queue = queue("q");
    enqueue(&mut runner, &queue, 3);
    let first = dequeue(&mut runner, &queue, 1);
    let mut listener = runner.0.block_on(runner.1.listen(&queue)).unwrap();
    runner.0.block_on(listener.wait(Duration::from_secs(30)));
    assert_eq!(master.command(&["WAIT", "1", "30000"]).unwrap(), ":1\r\n");

    master.kill9();
    ack(&mut runner, &queue, &first);
    let rest = dequeue(&mut runner, &queue, 10);
    assert_eq!(rest.deliveries.len(), 2);
    ack(&mut runner, &queue, &rest);
    assert_eq!(enqueued(&mut runner, &queue), 3);
    // The listener has moved too.
    runner.0.block_on(listener.wait(Duration::from_secs(30)));
    let heard = replica.command(&["PUBSUB", "NUMSUB", &queue.name().wake_channel()]).unwrap();
    assert!(heard.ends_with(":1\r\n"), "{heard}");
}

#[test]
fn a_master_that_became_a_replica_is_left() {
    let (first, second) = (Server::start(Kind::Redis), Server::start(Kind::Redis));
    second.command(&["REPLICAOF", "127.0.0.1", &first.port().to_string()]).unwrap();
    let sentinel = Sentinel::of(&first);
    sentinel.wait_for(|fields| fields.contains(&("num-slaves".to_owned(), "1".to_owned())));
    let redis = Redis::sentinel([sentinel.url()], Sentinel::MASTER).unwrap().time_limit(Duration::from_secs(30));
    let mut runner = Async::new(redis);
    let queue = queue("q");
    enqueue(&mut runner, &queue, 1);
    assert_eq!(first.command(&["WAIT", "1", "30000"]).unwrap(), ":1\r\n");
    let client = redis::Client::open(sentinel.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    redis::cmd("SENTINEL").arg("FAILOVER").arg(Sentinel::MASTER).exec(&mut connection).unwrap();
    let port = second.port().to_string();
    sentinel.wait_for(|fields| fields.contains(&("port".to_owned(), port.clone())));
    enqueue(&mut runner, &queue, 1);
    let here = second.command(&["ROLE"]).unwrap();
    assert!(here.contains("master"), "{here}");
    assert_eq!(dequeue(&mut runner, &queue, 5).deliveries.len(), 2);
}
