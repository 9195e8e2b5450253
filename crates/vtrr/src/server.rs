//! The server that a verb works on.

use std::time::Duration;

use vtrr_queue::Redis;

use crate::Failure;

/// How long a call may take. Shorter than the library's own: somebody sits and waits.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Which server.
#[derive(Debug, clap::Args)]
pub(crate) struct Server {
    /// The server: redis://USER:PASSWORD@HOST:PORT/DB, rediss://… for TLS, or unix:///PATH
    // Its value is not shown: it may hold a password.
    #[arg(long, value_name = "URL", env = "REDIS_URL", hide_env_values = true)]
    #[allow(clippy::doc_markdown, reason = "the text of --help")]
    url: Option<String>,
}

impl Server {
    /// The runner, and what to call the server; none if no server was named.
    pub(crate) fn connect(&self) -> Result<Option<(Redis, String)>, Failure> {
        match self.url.as_deref() {
            None | Some("") => Ok(None),
            Some(url) => Ok(Some((Redis::connect(url)?.time_limit(TIME_LIMIT), address(url)))),
        }
    }
}

/// Host and port, or the path of the socket: what may be shown of a URL.
fn address(url: &str) -> String {
    let rest = url.split_once(':').map_or(url, |(_, rest)| rest);
    let (login_and_host, after) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
        None => ("", rest),
    };
    let host = login_and_host.rsplit('@').next().unwrap_or_default();
    let path = after.split(['?', '#']).next().unwrap_or_default();
    // What follows the host holds an @: then what looks like a host may be part of a password.
    let doubtful = if host.is_empty() { path } else { after }.contains('@');
    match (doubtful, host.is_empty()) {
        (true, _) => "the server".to_owned(),
        (false, true) => path.to_owned(),
        (false, false) => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_shows_no_password() {
        for (url, shown) in [
            ("redis://127.0.0.1/", "127.0.0.1"),
            ("redis://127.0.0.1:7000/3", "127.0.0.1:7000"),
            ("rediss://user:secret@example.com:6380/0?protocol=3", "example.com:6380"),
            ("redis://:sec@ret@example.com", "example.com"),
            ("redis://:sec/ret@example.com", "the server"),
            ("redis://user:31337#ret@example.com", "the server"),
            ("redis://user:31337?ret@example.com", "the server"),
            ("redis://[::1]:6379", "[::1]:6379"),
            ("unix:///run/redis.sock?db=1&pass=secret", "/run/redis.sock"),
            ("unix:/run/redis.sock?pass=secret", "/run/redis.sock"),
        ] {
            assert_eq!(address(url), shown, "{url}");
        }
    }
}
