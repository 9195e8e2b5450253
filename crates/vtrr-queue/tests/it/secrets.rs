//! No password in what this crate says: errors and all that caused them, `Debug`, and what it logs.

use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Blocking, Context, Error, Queue, Redis, Result, Runner, Task, Worker};

use crate::server::{Kind, Server};

/// In URLs, and as it is sent.
const IN_URLS: &str = "s3cr%23t%2Fw0rd";
const SECRET: &str = "s3cr#t/w0rd";
const LIMIT: Duration = Duration::from_millis(300);

/// All that was logged, at every level and by every crate.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;
    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Of this thread, while the guard lives.
    pub(crate) fn begin(&self) -> tracing::subscriber::DefaultGuard {
        let subscriber =
            tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(self.clone()).with_ansi(false);
        tracing::subscriber::set_default(subscriber.finish())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn check(what: &str, text: &str) {
    for part in ["s3cr", "w0rd"] {
        assert!(!text.contains(part), "{what}: {text}");
    }
}

fn check_error(what: &str, error: &Error) {
    let mut text = format!("{error:#?}");
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        write!(text, "\n{error} {error:?}").unwrap();
        next = error.source();
    }
    check(what, &text);
}

fn check_refused<T>(url: &str, made: Result<T>) {
    match made {
        Ok(_) => panic!("{url} was taken"),
        Err(error) => check_error(url, &error),
    }
}

/// A port on which nobody listens, one on which nobody answers, and the ports of servers that refuse.
struct Ports {
    closed: u16,
    silent: TcpListener,
    other_password: Server,
    no_such_user: Server,
}

impl Ports {
    fn new() -> Self {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let other_password = Server::options(Kind::Redis).password("other").start();
        Self { closed, silent, other_password, no_such_user: Server::start(Kind::Valkey) }
    }

    fn addresses(&self) -> Vec<String> {
        let silent = self.silent.local_addr().unwrap().port();
        let ports = [self.closed, silent, self.other_password.port(), self.no_such_user.port()];
        ports.map(|port| format!("127.0.0.1:{port}")).to_vec()
    }
}

#[tokio::test]
async fn servers_that_cannot_be_used_are_reported_without_the_password() {
    let (log, ports) = (Log::default(), Ports::new());
    let _logging = log.begin();
    let queue = Queue::new("q").unwrap();
    for address in ports.addresses() {
        for login in ["user", ""] {
            for scheme in ["redis", "rediss"] {
                let url = format!("{scheme}://{login}:{IN_URLS}@{address}/3");
                let runners = [
                    Redis::connect(&url).unwrap(),
                    Redis::connect_with(redis::Client::open(url.as_str()).unwrap()),
                    Redis::sentinel([&url], "main").unwrap(),
                    Redis::sentinel_with(sentinel(&url)),
                    Redis::cluster([&url]).unwrap(),
                ];
                for runner in runners {
                    let runner = runner.time_limit(LIMIT);
                    let error = runner.run(Queue::new("{q}").unwrap().stats()).await.unwrap_err();
                    check_error(&url, &error);
                    check(&url, &format!("{runner:#?} {:#?}", runner.listen(&queue).await));
                }
                let mut blocking = Blocking::connect(&url).unwrap().time_limit(LIMIT);
                let (blocking, error) = tokio::task::spawn_blocking(move || {
                    let error = blocking.run(Queue::new("q").unwrap().stats()).unwrap_err();
                    (blocking, error)
                })
                .await
                .unwrap();
                check_error(&url, &error);
                check(&url, &format!("{blocking:#?}"));
            }
        }
    }
    check("the log", &log.text());
}

/// With a password for the master too.
fn sentinel(url: &str) -> redis::sentinel::SentinelClient {
    let login = redis::RedisConnectionInfo::default().set_password(SECRET);
    let master = redis::sentinel::SentinelNodeConnectionInfo::default().set_redis_connection_info(login);
    let kind = redis::sentinel::SentinelServerType::Master;
    redis::sentinel::SentinelClient::build(vec![url], "main", Some(master), kind).unwrap()
}

#[test]
fn a_url_that_cannot_be_read_is_not_shown() {
    for url in [
        format!("redis://user:{SECRET}@host:1/0"),
        format!("redis://:{IN_URLS}@host:port/"),
        format!("redis://:{IN_URLS}@host:99999/"),
        format!("redis://:{IN_URLS}@[::/"),
        format!("redis://:{IN_URLS}@host/{IN_URLS}"),
        format!("redis://:{IN_URLS}@/?protocol=9"),
        format!("redis://:%zz{IN_URLS}%ff@host/x"),
        format!("http://:{IN_URLS}@host/"),
        format!("redis:/:{IN_URLS}@host"),
        format!(" {IN_URLS}@host"),
        format!("unix://?pass={IN_URLS}&db=x"),
        format!("unix:///run/redis.sock?pass={IN_URLS}&db=x"),
        format!("rediss://:{IN_URLS}@host/?ssl_ca_certs=/missing"),
        IN_URLS.to_owned(),
        SECRET.to_owned(),
    ] {
        check_refused(&url, Redis::connect(&url));
        check_refused(&url, Blocking::connect(&url));
        check_refused(&url, Redis::sentinel([&url], "main"));
        check_refused(&url, Redis::cluster([&url]));
    }
}

/// A worker through an outage, at every level of the log. The tasks' own errors are the user's to keep clean.
#[tokio::test]
async fn a_worker_never_logs_it() {
    let log = Log::default();
    let _logging = log.begin();
    let mut server = Server::options(Kind::Redis).password(SECRET).start();
    let url = server.url().replace(SECRET, IN_URLS);
    let queue = Queue::new("q").unwrap();
    let runner = Redis::connect(&url).unwrap().time_limit(LIMIT);
    let handler = async |_: Context, (): ()| Err::<(), BoxError>("no".into());
    let builder = Worker::builder(queue.clone(), runner.clone()).sweep_interval(Duration::from_millis(20));
    let builder = builder.register("t", handler);
    let built = format!("{builder:#?}");
    let worker = builder.build().unwrap();
    check("debug", &format!("{built} {worker:#?} {queue:#?}"));
    let fails = async {
        for round in 0..2 {
            while runner.run(queue.enqueue("a", [Task::new("t", &()).unwrap()]).unwrap()).await.is_err() {}
            while runner.run(queue.stats()).await.map_or(0, |stats| stats.dead) == 0 {}
            if round == 0 {
                server.kill9();
                while !log.text().contains("cannot be reached") {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                server.restart();
            }
        }
    };
    worker.run_until(fails).await.unwrap();
    assert!(log.text().contains("the worker stops"), "{}", log.text());
    check("the log", &log.text());
}
