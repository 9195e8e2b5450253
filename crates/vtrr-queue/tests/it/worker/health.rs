//! Whether a worker is live: idle, full, stopping, and while its server is gone.

use std::io::{ErrorKind as Io, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio::sync::Notify;
use vtrr_queue::worker::{BoxError, Health};
use vtrr_queue::{Context, ErrorKind, Redis, Worker};

use super::bed::{Bed, Working, eventually, in_time};
use crate::proxy::Proxy;
use crate::server::{Kind, Server};

const LEASE: Duration = Duration::from_millis(900);
const NEVER: Duration = Duration::from_secs(3_600);

fn bed(url: &str) -> Bed<Redis> {
    Bed::new(Redis::connect(url).unwrap().time_limit(Duration::from_secs(1)))
}

/// A worker that neither polls nor sweeps of its own accord, with the handler `t` that ends when it is told to.
fn worker(bed: &Bed<Redis>, end: &Arc<Notify>) -> Worker<Redis> {
    let end = Arc::clone(end);
    let handler = move |_: Context, (): ()| {
        let end = Arc::clone(&end);
        async move {
            end.notified().await;
            Ok::<_, BoxError>(())
        }
    };
    let builder = bed.worker().concurrency(1).lease(LEASE).poll(NEVER).sweep_interval(NEVER).grace(NEVER);
    builder.register("t", handler).build().unwrap()
}

/// Waits until the queue has answered `n` times more.
async fn contacts(health: &Health, n: usize) {
    for _ in 0..n {
        let mut longest = Duration::ZERO;
        let mut newer = async || loop {
            let last = health.last_contact().expect("it was answered and has not ended");
            if last < longest {
                return;
            }
            longest = last;
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        in_time(newer()).await;
    }
    turns_live(health).await;
}

async fn turns_live(health: &Health) {
    eventually("live", async || health.last_contact().is_some() && health.is_live()).await;
}

async fn turns_dead(health: &Health) -> String {
    eventually("not live", async || !health.is_live()).await;
    health.trouble().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_stays_live_idle_full_and_stopping() {
    let (bed, end) = (bed(&Server::shared(Kind::Redis).url()), Arc::new(Notify::new()));
    let worker = worker(&bed, &end);
    let health = worker.health();
    assert_eq!(health.last_contact(), None);
    let working = Working::run(worker);
    turns_live(&health).await;
    // More than two leases each.
    contacts(&health, 7).await;
    bed.enqueue_call("t").await;
    eventually("a full worker", async || bed.stats().await.leased == 1).await;
    contacts(&health, 7).await;
    let stopped = working.tell_to_stop();
    contacts(&health, 7).await;
    end.notify_one();
    assert_eq!(stopped.await.succeeded, 1);
    assert_eq!(health.trouble().as_deref(), Some("the worker has ended"));
    assert_eq!((health.is_live(), health.last_contact()), (false, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_dropped_or_never_runs_is_not_live() {
    let (bed, end) = (bed(&Server::shared(Kind::Redis).url()), Arc::new(Notify::new()));
    let running = worker(&bed, &end);
    let health = running.health();
    let working = Working::run(running);
    turns_live(&health).await;
    working.kill();
    assert_eq!(turns_dead(&health).await, "the worker has ended");
    let idle = worker(&bed, &end);
    let reason = turns_dead(&idle.health()).await;
    assert!(reason.starts_with("no answer from the queue for ") && reason.ends_with("s; the lease is 900ms"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_a_lease_is_seen_and_so_is_its_end() {
    let mut server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port());
    let (bed, end) = (bed(&proxy.url()), Arc::new(Notify::new()));
    let worker = worker(&bed, &end);
    let health = worker.health();
    let working = Working::run(worker);
    turns_live(&health).await;
    // Idle, then full; refused, then silent.
    for task in 0..2 {
        if task == 1 {
            bed.enqueue_call("t").await;
            eventually("a full worker", async || bed.stats().await.leased == 1).await;
        }
        server.kill9();
        turns_dead(&health).await;
        assert!(health.last_contact().unwrap() >= LEASE);
        server.restart();
        turns_live(&health).await;
        if task == 1 {
            // The server kept nothing.
            bed.enqueue_call("t").await;
        }
        proxy.blackhole(true);
        turns_dead(&health).await;
        proxy.blackhole(false);
        turns_live(&health).await;
        // Neither are the right to run scripts, and any other answer, contact.
        server.command(&["ACL", "SETUSER", "default", "-@scripting"]).unwrap();
        turns_dead(&health).await;
        server.command(&["ACL", "SETUSER", "default", "+@scripting"]).unwrap();
        turns_live(&health).await;
    }
    working.kill();
}

/// What comes back for a request, all of it; nothing if it takes longer than the patience.
fn ask(address: SocketAddr, request: &str, patience: Duration) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: probe\r\n\r\n").unwrap();
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Err(error) if [Io::WouldBlock, Io::TimedOut].contains(&error.kind()) => {}
        other => drop(other.unwrap()),
    }
    answer
}

async fn asked(address: SocketAddr, request: &'static str) -> String {
    tokio::task::spawn_blocking(move || ask(address, request, Duration::from_secs(60))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_says_what_health_says() {
    let mut server = Server::start(Kind::Redis);
    let (bed, end) = (bed(&server.url()), Arc::new(Notify::new()));
    let worker = worker(&bed, &end);
    let health = worker.health();
    let livez = health.bind("127.0.0.1:0").await.unwrap();
    let address = livez.address();
    tokio::spawn(livez.serve());
    let working = Working::run(worker);
    turns_live(&health).await;
    let ok = |answer: &str| answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n");
    eventually("ok", async || ok(&asked(address, "GET /livez").await)).await;
    let head = asked(address, "HEAD /livez?verbose").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(asked(address, "POST /livez").await.starts_with("HTTP/1.1 405"));
    assert!(asked(address, "GET /").await.starts_with("HTTP/1.1 404"));
    assert!(asked(address, "nonsense").await.starts_with("HTTP/1.1 400"));
    server.kill9();
    turns_dead(&health).await;
    let dead = asked(address, "GET /livez").await;
    assert!(
        dead.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && dead.contains("\r\n\r\nno answer from the"),
        "{dead}"
    );
    server.restart();
    eventually("ok", async || ok(&asked(address, "GET /livez").await)).await;
    working.kill();
    eventually("the end", async || asked(address, "GET /livez").await.ends_with("\r\n\r\nthe worker has ended\n")).await;
}

/// Silent connections hold up nobody for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_request_are_closed() {
    let (bed, end) = (bed(&Server::shared(Kind::Redis).url()), Arc::new(Notify::new()));
    let worker = worker(&bed, &end);
    let livez = worker.health().bind("127.0.0.1:0").await.unwrap();
    let address = livez.address();
    tokio::spawn(livez.serve());
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(asked(address, "GET /livez").await.starts_with("HTTP/1.1 "));
    drop(silent);
}

#[tokio::test]
async fn an_address_that_is_taken_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let worker = worker(&bed("redis://127.0.0.1:1/"), &Arc::new(Notify::new()));
    let error = worker.health().bind(address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let words = format!("address must be free for this process to listen on, not {address}: ");
    assert!(error.to_string().starts_with(&words), "{error}");
    assert!(worker.health().bind("nowhere").await.unwrap_err().to_string().contains("not \"nowhere\": "));
}

/// A handler that does not yield on a runtime of one thread: who asks from outside sees it, over HTTP by the silence.
#[test]
fn a_blocked_runtime_is_not_live() {
    let url = Server::shared(Kind::Redis).url();
    let (tell, told) = mpsc::channel();
    let (unblock, blocked) = mpsc::channel::<()>();
    let (blocked, seen) = (Arc::new(Mutex::new(blocked)), Arc::new(Notify::new()));
    let last = Arc::clone(&seen);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bed = bed(&url);
            let handler = move |_: Context, (): ()| {
                let _ = blocked.lock().unwrap().recv();
                async { Ok::<_, BoxError>(()) }
            };
            let worker = bed.worker().lease(LEASE).register("t", handler).build().unwrap();
            let livez = worker.health().bind("127.0.0.1:0").await.unwrap();
            tell.send((worker.health(), livez.address())).unwrap();
            tokio::spawn(livez.serve());
            let working = Working::run(worker);
            bed.enqueue_call("t").await;
            last.notified().await;
            working.stop().await;
        });
    });
    let (health, address) = told.recv().unwrap();
    while health.is_live() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ask(address, "GET /livez", Duration::from_millis(300)), "");
    unblock.send(()).unwrap();
    while !ask(address, "GET /livez", Duration::from_secs(60)).contains(" 200 OK") {
        std::thread::sleep(Duration::from_millis(5));
    }
    seen.notify_one();
    thread.join().unwrap();
}
