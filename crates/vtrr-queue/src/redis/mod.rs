//! The runners for Redis and Valkey. The only module that names the redis crate.
//!
//! | file | what it does |
//! |---|---|
//! | `connect` | from URLs to a connection: single server, unix socket, TLS, Sentinel, Cluster |
//! | `script` | a call as commands of the server; its answers and errors as ours |
//! | `attempts` | how often and how long a call is repeated |
//! | `listen` | hears on a channel that tasks were placed |
//! | `blocking` | the runner without async |

mod attempts;
mod blocking;
mod connect;
mod listen;
mod script;

use std::any::TypeId;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::sentinel::SentinelClient;
use ::redis::{Client, Cmd, RedisResult};

use self::attempts::{Attempts, TIME_LIMIT};
use self::connect::{Node, Source};
use crate::call::{Call, Value};
use crate::command::{Command, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::QueueName;
use crate::queue::Queue;
use crate::runner::{Listener, Runner};

pub use self::blocking::Blocking;

/// What an error says of a connection that is closed and that nobody opens again.
const LOST_FOR_GOOD: &str = "a `MultiplexedConnection` given to `from_connection` is never opened again: give a \
    `ConnectionManager` or, to `connect_with`, the client";

/// Runs commands on Redis or Valkey, asynchronously, in a tokio runtime. Cheap to clone; clones share one connection.
///
/// No constructor sends anything: the first command connects, and so does every one that finds the connection broken.
/// A call that meets a server which cannot be reached, is loading, fails over or does not answer is repeated, unchanged,
/// until the time limit; commands know repeated calls by their request id or token, so they run once. What the server
/// refuses (no memory, a missing right) is not repeated. One round trip per call; calls of many tasks share the connection.
#[derive(Clone)]
pub struct Redis {
    link: Arc<Link>,
    time_limit: Duration,
}

impl Redis {
    /// A single server: `redis://user:password@host:port/db`, `rediss://…` for TLS (feature `tls`), or
    /// `unix:///path?db=…&user=…&pass=…`. User and password may be percent-encoded. `rediss://…?ssl_ca_certs=/path`
    /// names a file of certificates to trust instead of the system's.
    ///
    /// TLS goes by rustls' provider of cryptography for the process. If the program has installed none by the time when the
    /// first `rediss://` connection is opened, that installs `ring`; without TLS nothing is installed.
    ///
    /// [`Invalid`](ErrorKind::Invalid) if the URL is none of these or its file cannot be read.
    pub fn connect(url: &str) -> Result<Self> {
        Ok(Self::new(Source::Server(Node::parse(url)?.client)))
    }

    /// A single server, with everything that a prepared client can do.
    pub fn connect_with(client: Client) -> Self {
        Self::new(Source::Server(client))
    }

    /// The master that Redis Sentinel names at `urls`, asked again whenever the connection breaks or the server turns
    /// out to be a replica. The master itself is entered without password, in database 0, without TLS; else see
    /// [`sentinel_with`](Redis::sentinel_with).
    pub fn sentinel(urls: impl IntoIterator<Item = impl AsRef<str>>, master_name: &str) -> Result<Self> {
        let nodes = Node::parse_all(urls)?;
        let client = tokio::sync::Mutex::new(connect::sentinel(&nodes, master_name)?);
        Ok(Self::new(Source::Sentinel { client, tls: nodes.iter().any(Node::has_tls) }))
    }

    /// The master that a prepared Sentinel client finds: it may bring password, database and TLS for the master
    /// (`SentinelNodeConnectionInfo`, `SentinelClientBuilder`). It must look for a master. For Sentinels with TLS install a
    /// provider of cryptography (`rustls::crypto::CryptoProvider::install_default`): here nobody can see that they need one.
    pub fn sentinel_with(client: SentinelClient) -> Self {
        Self::new(Source::Sentinel { client: tokio::sync::Mutex::new(client), tls: false })
    }

    /// A Redis Cluster, found through any of `urls`. Only queues whose name keeps their keys in one slot can be used,
    /// like `{files}`; a command for another one is [`Invalid`](ErrorKind::Invalid) and not sent.
    pub fn cluster(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let nodes = Node::parse_all(urls)?;
        let client = connect::cluster(&nodes)?;
        Ok(Self::new(Source::Cluster { client, seeds: nodes.into_iter().map(|node| node.client).collect() }))
    }

    /// A connection that the caller owns. It is never replaced: a call is repeated on it until the time limit, which helps
    /// if it mends itself, as `redis::aio::ConnectionManager` and `redis::cluster_async::ClusterConnection` do. A
    /// `MultiplexedConnection` does not: once it is closed every call fails, and says so; give
    /// [`connect_with`](Redis::connect_with) its client instead. Listeners on it hear nothing, so workers poll.
    pub fn from_connection<C: ConnectionLike + Clone + Send + Sync + 'static>(connection: C) -> Self {
        let mends = TypeId::of::<C>() != TypeId::of::<MultiplexedConnection>();
        Self::new(Source::Given { connection: Arc::new(connection), mends })
    }

    fn new(source: Source) -> Self {
        Self {
            link: Arc::new(Link { source, current: Mutex::default(), opening: tokio::sync::Mutex::default() }),
            time_limit: TIME_LIMIT,
        }
    }

    /// How long a call may take, reconnecting and repeating included: 5 s unless set. One attempt gets at most half of it.
    /// A command of several calls may take as long for each. Once a call of an enqueue may have arrived, it is not repeated for
    /// more than 50 s, however long the limit is: after 60 s the server would take it for another.
    #[must_use]
    pub fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Runs the call of the step that is due, with repetitions.
    async fn send(&self, command: &mut impl Command) -> Result<Value> {
        let call = &command.call();
        let by_hash = script::by_hash(call);
        let now = || tokio::time::Instant::now().into_std();
        let mut attempts = Attempts::within(self.time_limit, command.known_for(), now);
        loop {
            let (mut used, began, time) = (None, now(), attempts.time());
            let attempt = self.link.attempt(call, &by_hash, &mut used);
            let error = match tokio::time::timeout(time, attempt).await {
                Ok(Ok(answer)) => return script::answer(answer),
                Ok(Err(error)) if error.is_connection_dropped() && self.link.source.is_lost_for_good() => {
                    return Err(script::failure(error, false).with_hint(LOST_FOR_GOOD));
                }
                Ok(Err(error)) => script::failure(error, matches!(self.link.source, Source::Cluster { .. })),
                Err(_) => script::silence(time),
            };
            if error.kind() != ErrorKind::Unavailable {
                return Err(error);
            }
            if used.is_some() {
                attempts.arrived(began);
            }
            self.link.forget(used.as_ref());
            tokio::time::sleep(attempts.again(error)?).await;
            command.repeated();
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("time_limit", &self.time_limit).finish_non_exhaustive()
    }
}

impl Runner for Redis {
    /// Errors: as the command's, and [`Unavailable`](ErrorKind::Unavailable) when the time limit has passed.
    async fn run<C: Command>(&self, mut command: C) -> Result<C::Reply> {
        if matches!(self.link.source, Source::Cluster { .. }) {
            check_slot(command.queue())?;
        }
        loop {
            let answer = self.send(&mut command).await;
            match answer.and_then(|answer| command.decode(answer)) {
                Ok(Step::Done(reply)) => return Ok(reply),
                Ok(Step::Again) => {}
                Err(error) => return Err(command.interrupted(error)),
            }
        }
    }

    /// Never fails: a listener that cannot connect goes on trying, and meanwhile hears nothing.
    async fn listen(&self, queue: &Queue) -> Result<Listener> {
        Ok(listen::start(&self.link, queue.name().wake_channel()))
    }
}

/// All keys of the queue must be in one slot.
fn check_slot(name: &QueueName) -> Result<()> {
    if name.is_one_slot() { Ok(()) } else { Err(needs_braces(name)) }
}

fn needs_braces(name: &QueueName) -> Error {
    let allowed = format!("in braces on Redis Cluster, which keeps the queue's keys in one slot, like \"{{{name}}}\"");
    Error::invalid("name", format_args!("\"{name}\""), &allowed)
}

/// The connection that all clones share, and where the next one comes from.
struct Link {
    source: Source,
    current: Mutex<Option<Arc<dyn Connection>>>,
    /// Held while connecting, so that one task does it for all.
    opening: tokio::sync::Mutex<()>,
}

/// A connection that many tasks use at once, each through a copy of its own.
trait Connection: Send + Sync {
    fn copy(&self) -> Box<dyn ConnectionLike + Send>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for C {
    fn copy(&self) -> Box<dyn ConnectionLike + Send> {
        Box::new(self.clone())
    }
}

impl Link {
    /// Sends a call once, and by its source if the server does not know it. `used` is the connection, once there is one.
    async fn attempt(
        &self,
        call: &Call,
        by_hash: &Cmd,
        used: &mut Option<Arc<dyn Connection>>,
    ) -> RedisResult<::redis::Value> {
        let mut connection = used.insert(self.connection().await?).copy();
        let answer = connection.req_packed_command(by_hash).await.and_then(::redis::Value::extract_error);
        if script::is_unknown(&answer) {
            return connection.req_packed_command(&script::by_source(call)).await.and_then(::redis::Value::extract_error);
        }
        answer
    }

    async fn connection(&self) -> RedisResult<Arc<dyn Connection>> {
        let current = self.current().clone();
        if let Some(connection) = current {
            return Ok(connection);
        }
        let _turn = self.opening.lock().await;
        let current = self.current().clone();
        if let Some(connection) = current {
            return Ok(connection);
        }
        let connection = self.source.open().await?;
        *self.current() = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Lets go of a broken connection, unless another task has replaced it already.
    fn forget(&self, broken: Option<&Arc<dyn Connection>>) {
        let mut current = self.current();
        if current.as_ref().zip(broken).is_some_and(|(current, broken)| Arc::ptr_eq(current, broken)) {
            *current = None;
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<dyn Connection>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
