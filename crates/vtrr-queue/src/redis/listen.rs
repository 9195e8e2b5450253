//! Hears on a channel that tasks were placed.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::{PubSubSink, PubSubStream};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Link;
use super::attempts::Pauses;
use super::connect::Source;
use crate::runner::Listener;

/// Silence after which the server is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(15);
/// How long it may take to connect, or to answer that.
const PATIENCE: Duration = Duration::from_secs(5);

/// Subscribes by a connection of its own, which is replaced for ever until the listener is dropped. Whenever one is there
/// it wakes once: something may have been missed.
pub(super) fn start(link: &Arc<Link>, channel: String) -> Listener {
    let (woken, listener) = watch::channel(());
    if matches!(link.source, Source::Given { .. }) {
        return Listener::new(listener, None);
    }
    let link = Arc::clone(link);
    let feeder = tokio::spawn(async move {
        let pauses = || Pauses::new(Duration::from_millis(20), PATIENCE);
        let mut pause = pauses();
        for turn in 0.. {
            if let Some((mut sink, stream)) = subscribe(&link.source, turn, &channel).await {
                pause = pauses();
                hear(&mut sink, stream, &woken).await;
            }
            sleep(pause.next()).await;
        }
    });
    Listener::new(listener, Some(feeder))
}

async fn subscribe(source: &Source, turn: usize, channel: &str) -> Option<(PubSubSink, PubSubStream)> {
    let subscribed = async {
        let mut subscriber = source.subscriber(turn).await?;
        subscriber.subscribe(channel).await?;
        ::redis::RedisResult::Ok(subscriber.split())
    };
    timeout(PATIENCE, subscribed).await.ok()?.ok()
}

/// Passes on what is heard, until the connection ends or falls silent for good.
async fn hear(sink: &mut PubSubSink, mut stream: PubSubStream, woken: &watch::Sender<()>) {
    woken.send_replace(());
    loop {
        match timeout(QUIET, stream.next()).await {
            Ok(Some(_)) => woken.send_replace(()),
            Ok(None) => return,
            Err(_) => match timeout(PATIENCE, sink.ping::<::redis::Value>()).await {
                Ok(Ok(_)) => {}
                _ => return,
            },
        }
    }
}
