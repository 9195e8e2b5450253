//! The provider of cryptography of a process is the application's to choose. A process of its own, with one test in it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use vtrr_queue::{Blocking, Queue, Redis, Runner};

/// What every application does that follows rustls' documentation, here after all that could have been faster: runners
/// without TLS that were made and have connected, and runners with TLS that were made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_installs_its_own_provider_after_it_has_made_its_runners() {
    // A server that closes whatever connects.
    let closes = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closes.local_addr().unwrap();
    std::thread::spawn(move || closes.incoming().for_each(drop));
    let (plain, tls) = (format!("redis://{address}/"), format!("rediss://{address}/"));
    let limit = Duration::from_millis(200);
    let (queue, client) = (Queue::new("{q}").unwrap(), |url: &str| redis::Client::open(url).unwrap());
    let kind = redis::sentinel::SentinelServerType::Master;
    let sentinel = redis::sentinel::SentinelClient::build(vec![plain.as_str()], String::from("main"), None, kind).unwrap();
    for runner in [
        Redis::connect(&plain).unwrap(),
        Redis::connect_with(client(&plain)),
        Redis::sentinel([&plain], "main").unwrap(),
        Redis::sentinel_with(sentinel),
        Redis::cluster([&plain]).unwrap(),
    ] {
        let mut listener = runner.listen(&queue).await.unwrap();
        assert!(runner.time_limit(limit).run(queue.stats()).await.is_err());
        listener.wait(Duration::from_millis(1)).await;
    }
    let mut blocking = Blocking::connect(&plain).unwrap().time_limit(limit);
    assert!(blocking.run(queue.stats()).is_err());
    let with_tls = [
        Redis::connect(&tls).unwrap(),
        Redis::connect_with(client(&tls)),
        Redis::sentinel([&tls], "main").unwrap(),
        Redis::cluster([&tls]).unwrap(),
    ];
    let blocking_with_tls = Blocking::connect(&tls).unwrap();
    rustls::crypto::ring::default_provider().install_default().expect("the first to choose");
    // It stays the process's, whoever connects afterwards.
    let chosen = Arc::as_ptr(CryptoProvider::get_default().unwrap());
    for runner in with_tls {
        assert!(runner.time_limit(limit).run(queue.stats()).await.is_err());
    }
    assert!(blocking_with_tls.time_limit(limit).run(queue.stats()).is_err());
    assert!(std::ptr::eq(chosen, Arc::as_ptr(CryptoProvider::get_default().unwrap())));
}
