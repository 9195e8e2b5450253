//! A worker's health over HTTP.

use std::convert::Infallible;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Health;
use crate::error::{Error, ErrorKind, Result};

/// How long a connection lives.
const PATIENCE: Duration = Duration::from_secs(5);
/// More connections than this wait until others are closed.
const MOST: usize = 64;

/// Answers `GET /livez`: 200 and `ok` while the worker is live, else 503 and the reason, as plain text. Made by [`Health::bind`].
#[derive(Debug)]
pub struct Livez {
    listener: TcpListener,
    address: SocketAddr,
    health: Health,
}

impl Health {
    /// Listens on a TCP address, such as `"0.0.0.0:8080"`; [`Livez::serve`] then answers. HTTP/1, one request per connection, without
    /// TLS: for the orchestrator, not for the world.
    ///
    /// On the runtime of the worker it also tells of one that is blocked: by its silence.
    ///
    /// ```
    /// # use vtrr_queue::{Memory, Queue, Worker};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (queue, runner) = (Queue::new("mail")?, Memory::new());
    /// let worker = Worker::builder(queue, runner).build()?;
    /// # let address = "127.0.0.1:0";
    /// tokio::spawn(worker.health().bind(address).await?.serve());
    /// # let until = tokio::time::sleep(std::time::Duration::from_millis(5));
    /// worker.run_until(until).await?; // or `run()`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: [`Invalid`](ErrorKind::Invalid) if the address cannot be listened on: none of this machine, taken, not allowed.
    pub async fn bind(&self, address: impl ToSocketAddrs + Debug) -> Result<Livez> {
        let wanted = format!("{address:?}");
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = bound.await.map_err(|error: std::io::Error| {
            Error::new(
                ErrorKind::Invalid,
                format!("address must be free for this process to listen on, not {wanted}: {error}"),
            )
        })?;
        Ok(Livez { listener, address, health: self.clone() })
    }
}

impl Livez {
    /// Where it listens; with the port that the system chose, if that was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers, for ever. Dropping the future closes everything.
    pub async fn serve(self) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MOST => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(answer(stream, self.health.clone()));
                    }
                    Err(error) => {
                        // No file is left, say; others may close theirs.
                        tracing::warn!(%error, "a probe of the worker's health could not be accepted");
                        sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
    }
}

/// One request. Who does not ask in time, or breaks off, is not answered.
async fn answer(stream: TcpStream, health: Health) {
    let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(response(&request, &health))));
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    let _ = timeout(PATIENCE, connection).await;
}

fn response(request: &Request<Incoming>, health: &Health) -> Response<String> {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let (status, text) = match (request.uri().path(), is_read) {
        ("/livez", true) => match health.trouble() {
            None => (StatusCode::OK, "ok".to_owned()),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
        },
        ("/livez", false) => (StatusCode::METHOD_NOT_ALLOWED, "GET is allowed".to_owned()),
        _ => (StatusCode::NOT_FOUND, "only /livez is here".to_owned()),
    };
    let mut response = Response::new(text + "\n");
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
