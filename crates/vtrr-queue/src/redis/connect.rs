//! From URLs to a connection: single server, unix socket, TLS, Sentinel, Cluster.

use std::sync::Arc;

use ::redis::aio::PubSub;
use ::redis::cluster::{ClusterClient, ClusterClientBuilder};
use ::redis::io::tcp::TcpSettings;
use ::redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind as Theirs, IntoConnectionInfo, RedisError,
    RedisResult,
};

use super::Connection;
use crate::error::{Error, ErrorKind, Result};

/// Where connections come from.
pub(super) enum Source {
    Server(Client),
    Sentinel {
        client: tokio::sync::Mutex<SentinelClient>,
        /// Whether a Sentinel is known to want TLS.
        tls: bool,
    },
    Cluster {
        client: ClusterClient,
        /// The nodes it was given.
        seeds: Vec<Client>,
    },
    /// The caller's own.
    Given {
        connection: Arc<dyn Connection>,
        /// Whether it may come back when it was closed.
        mends: bool,
    },
}

impl Source {
    /// A new connection. The caller bounds the time.
    pub(super) async fn open(&self) -> RedisResult<Arc<dyn Connection>> {
        match self {
            Self::Server(client) => open(client).await,
            Self::Sentinel { client, tls } => open(&master(client, *tls).await?).await,
            Self::Cluster { client, seeds } => {
                prepare_tls(seeds.iter().any(has_tls));
                Ok(Arc::new(client.get_async_connection().await?))
            }
            Self::Given { connection, .. } => Ok(Arc::clone(connection)),
        }
    }

    /// Whether a connection of it that is closed stays so.
    pub(super) fn is_lost_for_good(&self) -> bool {
        matches!(self, Self::Given { mends: false, .. })
    }

    /// A connection to subscribe with; the `turn`-th that is tried.
    pub(super) async fn subscriber(&self, turn: usize) -> RedisResult<PubSub> {
        let client = match self {
            Self::Server(client) => client,
            Self::Sentinel { client, tls } => &master(client, *tls).await?,
            // A cluster passes messages on to all its nodes.
            Self::Cluster { seeds, .. } => &seeds[turn % seeds.len()],
            Self::Given { .. } => {
                return Err((Theirs::InvalidClientConfig, "a connection of the caller's cannot be doubled").into());
            }
        };
        prepare_tls(has_tls(client));
        client.get_async_pubsub().await
    }
}

/// The master that the Sentinels name.
async fn master(client: &tokio::sync::Mutex<SentinelClient>, tls: bool) -> RedisResult<Client> {
    prepare_tls(tls);
    client.lock().await.async_get_client().await
}

pub(super) fn has_tls(client: &Client) -> bool {
    matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
}

async fn open(client: &Client) -> RedisResult<Arc<dyn Connection>> {
    prepare_tls(has_tls(client));
    // The caller bounds the time of connecting and answering together.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    Ok(Arc::new(client.get_multiplexed_async_connection_with_config(&config).await?))
}

/// What a URL says.
pub(super) struct Node {
    pub(super) client: Client,
    /// Certificates to trust, in PEM, if not the system's.
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "parsed all the same, to be refused"))]
    authorities: Option<Vec<u8>>,
}

impl Node {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let info = url.into_connection_info().map_err(refused)?;
        // Without naming the client, connecting is one exchange less, and nothing at all without login and database.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_tcp_settings(at_once()).set_redis_settings(settings);
        let parsed = ::redis::parse_redis_url(url);
        let file = parsed
            .and_then(|url| url.query_pairs().find(|(name, _)| name == "ssl_ca_certs").map(|(_, file)| file.into_owned()));
        let authorities = file.map(|file| read(&file)).transpose()?;
        let client = match &authorities {
            Some(authorities) => trusting(info, authorities),
            None => Client::open(info),
        };
        Ok(Self { client: client.map_err(refused)?, authorities })
    }

    pub(super) fn has_tls(&self) -> bool {
        has_tls(&self.client)
    }

    pub(super) fn parse_all(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Self>> {
        urls.into_iter().map(|url| Self::parse(url.as_ref())).collect()
    }
}

/// A client for the master that the Sentinels at `nodes` name.
pub(super) fn sentinel(nodes: &[Node], master_name: &str) -> Result<SentinelClient> {
    let nodes = nodes.iter().map(|node| node.client.get_connection_info().clone()).collect();
    let master = SentinelNodeConnectionInfo::default().set_tcp_settings(at_once());
    SentinelClient::build(nodes, String::from(master_name), Some(master), SentinelServerType::Master).map_err(refused)
}

/// A client for the cluster that `nodes` belong to. It follows moved slots by itself, within our time limit.
pub(super) fn cluster(nodes: &[Node]) -> Result<ClusterClient> {
    let infos = nodes.iter().map(|node| node.client.get_connection_info().clone());
    let builder = ClusterClientBuilder::new(infos).tcp_settings(at_once()).retries(8).min_retry_wait(5).max_retry_wait(200);
    #[cfg(feature = "tls")]
    let builder = match nodes.iter().find_map(|node| node.authorities.clone()) {
        Some(authorities) => builder.certs(certificates(authorities)),
        None => builder,
    };
    builder.build().map_err(refused)
}

/// A call is sent when it is made: Nagle's algorithm would hold back one that follows another.
fn at_once() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// A URL that cannot be used. Not shown: it may hold a password.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn refused(error: RedisError) -> Error {
    const ALLOWED: &str =
        "redis://USER:PASSWORD@HOST:PORT/DB, rediss://… for TLS, or unix:///PATH?db=DB&user=USER&pass=PASSWORD";
    Error::new(ErrorKind::Invalid, format!("url must be {ALLOWED}: {error}"))
}

fn read(file: &str) -> Result<Vec<u8>> {
    std::fs::read(file)
        .map_err(|error| Error::invalid("ssl_ca_certs", format_args!("{file:?}: {error}"), "a file that can be read"))
}

#[cfg(feature = "tls")]
fn trusting(info: ConnectionInfo, authorities: &[u8]) -> RedisResult<Client> {
    Client::build_with_tls(info, certificates(authorities.to_vec()))
}

#[cfg(not(feature = "tls"))]
fn trusting(_: ConnectionInfo, _: &[u8]) -> RedisResult<Client> {
    Err((Theirs::InvalidClientConfig, "ssl_ca_certs needs the feature tls").into())
}

#[cfg(feature = "tls")]
fn certificates(authorities: Vec<u8>) -> ::redis::TlsCertificates {
    ::redis::TlsCertificates { client_tls: None, root_cert: Some(authorities) }
}

/// To be called before a connection is opened, with whether it is one of TLS: that needs a provider of cryptography for the
/// whole process, since the redis crate takes no other. Ours, unless the program has chosen one.
pub(super) fn prepare_tls(tls: bool) {
    #[cfg(feature = "tls")]
    if tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    #[cfg(not(feature = "tls"))]
    let _ = tls;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_may_escape_and_choose() {
        let info = |url: &str| Node::parse(url).unwrap().client.get_connection_info().clone();
        let tcp = info("redis://us%40er:p%2Fw%3A@example.com:7000/3");
        assert_eq!(tcp.addr().to_string(), "example.com:7000");
        let login = tcp.redis_settings();
        assert_eq!((login.username(), login.password(), login.db()), (Some("us@er"), Some("p/w:"), 3));
        assert!(tcp.tcp_settings().nodelay());
        for scheme in ["unix", "redis+unix"] {
            let socket = info(&format!("{scheme}:///run/redis.sock?db=2&user=a&pass=p%26w"));
            assert_eq!(socket.addr().to_string(), "/run/redis.sock");
            let login = socket.redis_settings();
            assert_eq!((login.username(), login.password(), login.db()), (Some("a"), Some("p&w"), 2));
        }
    }

    #[test]
    fn an_unusable_url_is_refused_without_showing_it() {
        for url in [
            "http://:secret@host",
            "redis://:secret@host:port/",
            "redis://:secret@host/db",
            "redis://:secret@0.0.0.0/",
            "redis://:secret@host/?protocol=9",
            "redis://:secret@host/?ssl_ca_certs=/dev/null",
            "rediss://:secret@host/?ssl_ca_certs=/missing",
            "secret",
        ] {
            let Err(error) = Node::parse(url) else { panic!("{url} was taken") };
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }
}
