//! The runner without async.

use std::fmt;
use std::time::{Duration, Instant};

use ::redis::{Client, Cmd, ConnectionLike, RedisResult, Value};

use super::attempts::{Attempts, TIME_LIMIT};
use super::connect::{self, Node};
use super::script;
use crate::call::Call;
use crate::command::{Command, Step};
use crate::error::{ErrorKind, Result};

/// Runs commands on Redis or Valkey and blocks until they have answered.
///
/// [`Blocking::connect`] reconnects and repeats as `Redis` does. [`Blocking::new`] takes any connection there is: of a
/// client, a Sentinel client or a cluster client, owned or `&mut`. It has no way to replace that one, so it sends each call
/// once, and bounds no time: set the connection's timeouts. After [`Unavailable`](ErrorKind::Unavailable) the same command
/// may be run on a new one; an enqueue so that it arrives within 60 s of the first time.
pub struct Blocking<C> {
    origin: Origin<C>,
    time_limit: Duration,
}

enum Origin<C> {
    /// The caller's.
    Given(C),
    /// From a client, and from there again when it breaks.
    Client {
        client: Box<Client>,
        connection: Option<C>,
        open: fn(&Client, Duration) -> RedisResult<C>,
        /// Bounds how long the connection waits for an answer.
        bound: fn(&C, Duration) -> RedisResult<()>,
    },
}

impl Blocking<::redis::Connection> {
    /// A single server by URL, as [`Redis::connect`](super::Redis::connect) takes it. The first command connects.
    pub fn connect(url: &str) -> Result<Self> {
        let origin = Origin::Client {
            client: Box::new(Node::parse(url)?.client),
            connection: None,
            // Login and choice of the database may each wait that long.
            open: |client, time| {
                connect::prepare_tls(connect::has_tls(client));
                client.get_connection_with_timeout(time / 2)
            },
            bound: |connection, time| {
                connection.set_read_timeout(Some(time))?;
                connection.set_write_timeout(Some(time))
            },
        };
        Ok(Self { origin, time_limit: TIME_LIMIT })
    }

    /// How long a call may take, reconnecting and repeating included: 5 s unless set. One attempt gets at most half of it. An
    /// enqueue is repeated for at most 50 s, as [`Redis::time_limit`](super::Redis::time_limit) says.
    #[must_use]
    pub fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }
}

impl<C: ConnectionLike> Blocking<C> {
    /// On this connection. A cluster refuses a queue whose name does not keep its keys in one slot, as `{files}` does.
    pub fn new(connection: C) -> Self {
        Self { origin: Origin::Given(connection), time_limit: TIME_LIMIT }
    }

    /// Runs a command to its end, with as many calls as it takes, one round trip each.
    ///
    /// Errors: as the command's, and [`Unavailable`](ErrorKind::Unavailable) as said above.
    pub fn run<K: Command>(&mut self, mut command: K) -> Result<K::Reply> {
        loop {
            let answer = self.send(&mut command);
            match answer.and_then(|answer| command.decode(answer)) {
                Ok(Step::Done(reply)) => return Ok(reply),
                Ok(Step::Again) => {}
                Err(error) => return Err(command.interrupted(error)),
            }
        }
    }

    /// Runs the call of the step that is due, with repetitions where there is a client.
    fn send(&mut self, command: &mut impl Command) -> Result<crate::call::Value> {
        let call = &command.call();
        let by_hash = script::by_hash(call);
        let mut attempts = Attempts::within(self.time_limit, command.known_for(), Instant::now);
        loop {
            let began = attempts.now();
            let error = match self.attempt(call, &by_hash, attempts.time()) {
                Ok(answer) => return script::answer(answer),
                Err(error) => script::failure(error, false),
            };
            match &mut self.origin {
                Origin::Client { connection, .. } if error.kind() == ErrorKind::Unavailable => {
                    if connection.take().is_some() {
                        attempts.arrived(began);
                    }
                }
                _ => return Err(error),
            }
            std::thread::sleep(attempts.again(error)?);
            command.repeated();
        }
    }

    /// Sends a call once, and by its source if the server does not know it.
    fn attempt(&mut self, call: &Call, by_hash: &Cmd, time: Duration) -> RedisResult<Value> {
        let connection = match &mut self.origin {
            Origin::Given(connection) => connection,
            Origin::Client { client, connection, open, bound } => {
                let connection = match connection {
                    Some(connection) => connection,
                    None => connection.insert(open(client, time)?),
                };
                bound(connection, time)?;
                connection
            }
        };
        let answer = connection.req_command(by_hash).and_then(Value::extract_error);
        if script::is_unknown(&answer) {
            return connection.req_command(&script::by_source(call)).and_then(Value::extract_error);
        }
        answer
    }
}

impl<C> fmt::Debug for Blocking<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").field("time_limit", &self.time_limit).finish_non_exhaustive()
    }
}
