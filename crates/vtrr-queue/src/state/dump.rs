//! The whole state as text, key by key, to be held against a server's.

use std::collections::BTreeMap;

use crate::task::{Payload, json_string};

use super::{Entry, Held, Holding, Kind, Place, Scored, State};

type Fields = BTreeMap<String, String>;

impl State {
    /// Every key of the queue that exists, as field → text. Scores and tags are written as Rust writes doubles. For tests.
    #[doc(hidden)]
    pub fn dump(&self) -> BTreeMap<String, Fields> {
        let lanes = |prefix: &str, lanes: &std::collections::HashMap<String, std::collections::VecDeque<Entry>>| {
            lanes
                .iter()
                .map(|(partition, lane)| (format!("{prefix}{}", crate::keys::encode_partition(partition)), list(lane)))
                .collect::<Vec<_>>()
        };
        let mut keys: BTreeMap<String, Fields> = [
            ("queue", scored(&self.queue)),
            ("current_virtual_time", Fields::from([(String::new(), format!("{:?}", self.virtual_time))])),
            ("partition_virtual_time", map(&self.finish, |finish| format!("{finish:?}"))),
            ("task", map(&self.task, |payload| String::from_utf8_lossy(&payload.0).into())),
            ("waiting", map(&self.waiting, waiting)),
            (
                "head",
                map(&self.head, |head| {
                    let kind = match head.kind {
                        Kind::None => '-',
                        Kind::Unpaid => 'u',
                        Kind::Paid => 'p',
                        Kind::Ghost => 'g',
                    };
                    let more = if head.paid == 0 && head.old == 0 {
                        String::new()
                    } else {
                        format!(",{},{},{}", head.paid, head.old, head.old_paid)
                    };
                    format!("{kind}{}{more} {}", head.lane, head.id)
                }),
            ),
            ("idle", scored(&self.idle)),
            ("lease", scored(&self.lease)),
            ("held", map(&self.held, held)),
            ("owner", map(&self.owner, holding)),
            ("running", map(&self.running, ToString::to_string)),
            ("delayed", scored(&self.delayed)),
            ("dead", scored(&self.dead)),
            ("error", self.error.clone().into_iter().collect()),
            ("share", map(&self.share, |share| format!("{:?}", share.get()))),
            ("request", scored(&self.request)),
            ("answer", self.answer.clone().into_iter().collect()),
            ("meta", self.meta()),
        ]
        .into_iter()
        .map(|(key, fields)| (key.to_owned(), fields))
        .chain(lanes("lane:=", &self.lane))
        .chain(lanes("paid:=", &self.paid))
        .collect();
        keys.retain(|_, fields| !fields.is_empty());
        keys
    }

    fn meta(&self) -> Fields {
        let mut meta: Fields = self.totals.iter().map(|(name, n)| ((*name).to_owned(), n.to_string())).collect();
        if let Some(mode) = self.mode {
            meta.insert("mode".into(), mode.as_str().into());
        }
        meta.insert("serial".into(), self.serial.to_string());
        meta.insert("token".into(), self.token.to_string());
        meta
    }
}

fn scored(set: &Scored) -> Fields {
    set.iter().map(|(score, member)| (member.to_owned(), format!("{score:?}"))).collect()
}

fn map<T>(map: &std::collections::HashMap<String, T>, text: impl Fn(&T) -> String) -> Fields {
    map.iter().map(|(field, value)| (field.clone(), text(value))).collect()
}

fn list(lane: &std::collections::VecDeque<Entry>) -> Fields {
    lane.iter().enumerate().map(|(i, entry)| (format!("{i:06}"), format!("{} {}", entry.serial, entry.id))).collect()
}

fn waiting(payload: &Payload) -> String {
    let Some(prefix) = payload.prefix() else { return String::new() };
    let partition = json_string(&prefix.partition);
    let rest = String::from_utf8_lossy(&payload.0[prefix.end..]);
    format!("{} {} {} {partition},{rest}", prefix.serial, prefix.weight.get(), prefix.at)
}

fn held(held: &Held) -> String {
    let place = match held.place {
        Place::Leased => 'l',
        Place::DelayedPaid => 'p',
        Place::DelayedRetry => 'r',
        Place::Queued => 'q',
        Place::QueuedPaid => 'Q',
        Place::Dead => 'd',
    };
    format!(
        "{place} {} {} {} {} {} {} {:?} {} {}",
        held.token,
        held.deliveries,
        held.blames,
        held.losses,
        u8::from(held.free_used),
        held.max_deliveries,
        held.start,
        held.owner,
        String::from_utf8_lossy(&held.payload.0)
    )
}

fn holding(holding: &Holding) -> String {
    let ids = holding.ids.iter().map(|(id, last)| format!("\0{}{id}", if *last { '+' } else { '-' }));
    std::iter::once(holding.request.clone()).chain(ids).collect()
}
