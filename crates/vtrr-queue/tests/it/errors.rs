//! An error changes nothing, whatever it comes from: a key of a wrong type, another slot, a missing right, full memory.

use std::collections::{BTreeMap, BTreeSet};

use redis::RedisResult;
use vtrr_queue::{Call, Command, Queue, SCRIPTS, Script};

use crate::busy::{Busy, Mode, enqueue};
use crate::clocked::{Clocked, Dump};
use crate::server::{Kind, Server};

const NAME: &str = "q";

/// All keys and prefixes of keys a script takes; the last is a channel.
fn names(busy: &Busy) -> Vec<String> {
    let keys = busy.queue.stats().call().keys;
    keys[..keys.len() - 1].iter().map(|key| key["vtrr:q:".len()..].to_owned()).collect()
}

/// A server with copies of what stood in it.
struct Bench {
    server: Server,
    clocked: Clocked,
    busy: Busy,
    copies: Vec<(String, Vec<u8>)>,
    before: Dump,
}

impl Bench {
    fn new(kind: Kind, mode: Mode) -> Self {
        let server = Server::start(kind);
        let mut clocked = Clocked::at(&server.url());
        let busy = Busy::make(&mut clocked, NAME, mode);
        let before = clocked.keys(NAME);
        let copy = |key: &String| {
            let key = format!("vtrr:{NAME}:{key}");
            let copy = redis::cmd("DUMP").arg(&key).query(&mut clocked.connection).unwrap();
            (key, copy)
        };
        let copies = before.keys().map(copy).collect();
        Self { server, clocked, busy, copies, before }
    }

    fn restore(&mut self) {
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHALL");
        for (key, copy) in &self.copies {
            pipe.cmd("RESTORE").arg(key).arg(0).arg(copy);
        }
        pipe.exec(&mut self.clocked.connection).unwrap();
        self.clocked.set_clock(self.busy.now_us);
    }

    /// Puts something of a wrong type in place of a key; answers all keys as they are now.
    fn break_key(&mut self, short: &str) -> Dump {
        let key = format!("vtrr:{NAME}:{short}");
        let mut pipe = redis::pipe();
        pipe.del(&key);
        if ["current_virtual_time", "sweeper"].contains(&short) {
            pipe.rpush(&key, "broken")
        } else {
            pipe.set(&key, "broken")
        };
        pipe.exec(&mut self.clocked.connection).unwrap();
        self.clocked.keys(NAME)
    }

    /// By the real clock, as another user perhaps: after the clock of `busy`, so that all that waits for a time is due.
    fn run_as(&self, login: &str, call: &Call) -> RedisResult<redis::Value> {
        let url = self.server.url().replace("//", &format!("//{login}"));
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(call.script.source).arg(call.keys.len()).arg(&*call.keys).arg(&call.args);
        cmd.query(&mut connection)
    }
}

/// The keys in which two states differ.
fn changed(before: &Dump, after: &Dump) -> BTreeSet<String> {
    let keys = before.keys().chain(after.keys());
    keys.filter(|key| before.get(*key) != after.get(*key)).cloned().collect()
}

/// What each call changes when nothing is wrong, by its title.
fn what_each_changes(bench: &mut Bench) -> BTreeMap<String, BTreeSet<String>> {
    let mut changes = BTreeMap::new();
    for (title, call) in bench.busy.calls() {
        bench.restore();
        bench.clocked.send(&call).unwrap_or_else(|error| panic!("{title}: {error}"));
        changes.insert(title, changed(&bench.before, &bench.clocked.keys(NAME)));
    }
    changes
}

fn wrong_types(kind: Kind, mode: Mode) {
    let bench = &mut Bench::new(kind, mode);
    let writes = what_each_changes(bench);
    let mut keys: BTreeSet<_> = names(&bench.busy).into_iter().chain(bench.before.keys().cloned()).collect();
    keys.extend(writes.values().flatten().cloned());
    if mode == Mode::Head {
        assert_eq!(bench.before.len(), 23, "{:?}", bench.before.keys());
    }
    let mut faults = Vec::new();
    for key in &keys {
        bench.restore();
        let mut broken = bench.break_key(key);
        for (title, call) in bench.busy.calls() {
            let answer = bench.clocked.send(&call);
            let after = bench.clocked.keys(NAME);
            let changed = changed(&broken, &after);
            match answer {
                Err(error) if !error.to_string().contains("WRONGTYPE") => {
                    faults.push(format!("{title}, {key} broken: {error}"));
                }
                Err(_) if changed.is_empty() => {}
                Err(error) => faults.push(format!("{title}, {key} broken: changes {changed:?}. {error}")),
                Ok(_) if changed.contains(key) || writes[&title].contains(key) => {
                    faults.push(format!("{title}, {key} broken: does not see it"));
                }
                Ok(_) => {}
            }
            if !changed.is_empty() {
                bench.restore();
                broken = bench.break_key(key);
            }
        }
    }
    assert!(faults.is_empty(), "{kind:?} {mode:?}:\n{}", faults.join("\n"));
}

#[test]
fn a_key_of_a_wrong_type_redis_7() {
    for mode in Mode::EVERY {
        wrong_types(Kind::Redis, mode);
    }
}

#[test]
fn a_key_of_a_wrong_type_valkey_8() {
    for mode in Mode::EVERY {
        wrong_types(Kind::Valkey, mode);
    }
}

#[test]
fn a_key_of_a_wrong_type_redis_6_2() {
    for mode in Mode::EVERY {
        wrong_types(Kind::Redis62, mode);
    }
}

#[test]
fn every_call_does_something() {
    let reads = ["dead_letters", "stats", "partitions", "peek", "find", "eviction"];
    let mut idle: BTreeSet<_> =
        Bench::new(Kind::Redis, Mode::Head).busy.calls().into_iter().map(|(title, _)| title).collect();
    for mode in Mode::EVERY {
        for (title, keys) in what_each_changes(&mut Bench::new(Kind::Redis, mode)) {
            let read = reads.iter().any(|read| title.starts_with(read));
            assert!(!read || keys.is_empty(), "{title} changes {keys:?}");
            if read || !keys.is_empty() {
                idle.remove(&title);
            }
        }
    }
    // Counting only.
    let reads = ["a request again", "dequeue: again", "settle: gone"];
    idle.retain(|title| !reads.contains(&title.as_str()) && !title.contains(": delayed") && !title.contains(": dead"));
    assert!(idle.is_empty(), "{idle:?}");
}

/// Every command that the scripts name.
fn commands() -> BTreeSet<String> {
    SCRIPTS.iter().flat_map(commands_of).collect()
}

/// Those of one script.
pub(crate) fn commands_of(script: &Script) -> BTreeSet<String> {
    let words = script.source.split('\'');
    let is_command = |word: &&str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let not = ["ERR", "COUNT", "LIMIT", "WITHSCORES"];
    words.filter(is_command).filter(|word| !not.contains(word)).map(str::to_lowercase).collect()
}

#[test]
fn a_missing_right() {
    const WRITES: [&str; 14] = [
        "zadd", "zrem", "hset", "hdel", "hincrby", "rpush", "lpush", "lpop", "ltrim", "set", "del", "unlink", "pexpire",
        "publish",
    ];
    // Without `INFO` a call answers that it does not know.
    let reads = commands().into_iter().filter(|command| !WRITES.contains(&command.as_str()) && command != "info");
    let reads: Vec<_> = reads.collect();
    assert!(reads.len() > 10 && reads.contains(&"zscore".to_owned()), "{reads:?}");
    for kind in Kind::ALL {
        let bench = &mut Bench::new(kind, Mode::Head);
        let mut faults = Vec::new();
        for command in &reads {
            let rights = ["ACL", "SETUSER", "some", "reset", "on", ">pw", "~*", "&*", "+@all", &format!("-{command}")];
            assert_eq!(bench.server.command(&rights).unwrap(), "+OK\r\n");
            let mut refused = 0;
            for (title, call) in bench.busy.calls() {
                bench.restore();
                if let Err(error) = bench.run_as("some:pw@", &call) {
                    refused += 1;
                    let changed = changed(&bench.before, &bench.clocked.keys(NAME));
                    if !changed.is_empty() {
                        faults.push(format!("{title}, no {command}: {changed:?} changed. {error}"));
                    }
                }
            }
            assert!(refused > 0, "{kind:?}: nothing needs {command}");
        }
        assert!(faults.is_empty(), "{kind:?}:\n{}", faults.join("\n"));
    }
}

#[test]
fn without_the_channel_everything_works() {
    for kind in Kind::ALL {
        let bench = &mut Bench::new(kind, Mode::Head);
        let rights = ["ACL", "SETUSER", "some", "reset", "on", ">pw", "~*", "resetchannels", "+@all"];
        assert_eq!(bench.server.command(&rights).unwrap(), "+OK\r\n");
        for (title, call) in bench.busy.calls() {
            bench.restore();
            bench.run_as("some:pw@", &call).unwrap_or_else(|error| panic!("{kind:?}, {title}: {error}"));
        }
    }
}

#[test]
fn full_memory_refuses_what_grows_and_nothing_else() {
    for kind in Kind::ALL {
        for mode in Mode::EVERY {
            let bench = &mut Bench::new(kind, mode);
            for (title, call) in bench.busy.calls() {
                bench.server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
                bench.restore();
                bench.server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
                let answer = bench.clocked.send(&call);
                let grows = ["enqueue", "set_share", "unflatten"].iter().any(|name| title.starts_with(name));
                assert_eq!(answer.is_err(), grows, "{kind:?} {mode:?}, {title}: {answer:?}");
                if let Err(error) = answer {
                    assert!(error.to_string().contains("OOM"), "{error}");
                    assert_eq!(
                        changed(&bench.before, &bench.clocked.keys(NAME)),
                        BTreeSet::new(),
                        "{kind:?} {mode:?}, {title}"
                    );
                }
            }
        }
    }
}

/// The slot of a key without braces in it.
pub(crate) fn slot(key: &str) -> u16 {
    let crc = key.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
    });
    crc % 16_384
}

/// A cluster refuses a queue's keys in several slots; and where only the lanes are on another node, nothing has been written.
#[test]
fn another_slot() {
    for kind in Kind::ALL {
        let server = Server::options(kind).cluster().arg("--cluster-require-full-coverage", "no").start();
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let mut run = |call: &Call| -> RedisResult<redis::Value> {
            let mut cmd = redis::cmd("EVAL");
            cmd.arg(call.script.source).arg(call.keys.len()).arg(&*call.keys).arg(&call.args);
            cmd.query(&mut connection)
        };
        let plain = Queue::new("files").unwrap();
        let error = run(&enqueue(&plain, "a", 0..3).call()).unwrap_err().to_string();
        assert!(error.to_uppercase().contains("CROSSSLOT"), "{error}");
        assert_eq!(server.command(&["DBSIZE"]).unwrap(), ":0\r\n");

        // Both prefixes are in the queue's slot, the lanes are in one that nobody serves.
        let queue = Queue::new("{files}").unwrap();
        let prefixes: Vec<_> =
            (0..).map(|n| format!("lane{n}:=")).filter(|prefix| slot(prefix) == slot("files")).take(2).collect();
        for prefix in &prefixes {
            server.command(&["CLUSTER", "DELSLOTS", &slot(&format!("{prefix}a")).to_string()]).unwrap();
        }
        let elsewhere = |mut call: Call| {
            let mut keys = call.keys.to_vec();
            keys[18..20].clone_from_slice(&prefixes);
            call.keys = keys.into();
            call
        };
        run(&enqueue(&queue, "a", 0..1).call()).unwrap();
        let state = || {
            let commands: [&[&str]; 3] = [&["HGETALL", "vtrr:{files}:meta"], &["HGETALL", "vtrr:{files}:head"], &["DBSIZE"]];
            commands.map(|words| server.command(words).unwrap())
        };
        let before = state();
        let error = run(&elsewhere(enqueue(&queue, "a", 1..3).call())).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("non local key") || error.contains("slot not served"), "{kind:?} {error}");
        assert_eq!(state(), before);
    }
}
