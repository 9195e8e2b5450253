//! The ACL users of docs/production.md, as they stand there: what each role must do works, on every server; what it must not
//! do is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, IntoConnectionInfo, RedisResult, ServerErrorKind, Value};
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Call, Context, Queue, Redis, Runner, SCRIPTS, Task, Worker};

use crate::busy::{Busy, Mode};
use crate::clocked::Clocked;
use crate::errors::commands_of;
use crate::server::{Kind, Server};

const NAME: &str = "files";
const DOCUMENT: &str = include_str!("../../../../docs/production.md");
/// Every connection's, and what workers send beside scripts.
const CONNECTION: [&str; 4] = ["eval", "evalsha", "select", "ping"];
const OF_WORKERS: [&str; 6] = ["subscribe", "info", "set", "get", "pexpire", "exists"];
const LOOKS: [&str; 5] = ["stats", "partitions", "peek", "find", "dead_letters"];
const OPERATES: [&str; 8] = ["redrive", "discard", "cancel", "purge", "share", "flatten", "unflatten", "stats"];
const WORKS: [&str; 7] = ["enqueue", "dequeue", "settle", "claim", "extend", "sweep", "eviction"];

/// The scripts of each role.
fn roles() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let of = |lists: &[&[&'static str]]| lists.concat().into_iter().collect();
    BTreeMap::from([
        ("producer", of(&[&["enqueue"]])),
        // Of Python: cancels what Celery's `revoke` names, tells of the dead.
        ("worker", of(&[&WORKS, &LOOKS, &["cancel"]])),
        ("operator", of(&[&LOOKS, &OPERATES])),
        ("viewer", of(&[&LOOKS])),
    ])
}

/// The words of a role's line in the document.
fn line(role: &str) -> Vec<&'static str> {
    let start = format!("ACL SETUSER {NAME}-{role} ");
    let lines: Vec<_> = DOCUMENT.lines().filter(|line| line.starts_with(&start)).collect();
    let [line] = lines[..] else { panic!("{role}: {lines:?}") };
    line.split(' ').collect()
}

fn server(kind: Kind) -> Server {
    let server = Server::start(kind);
    for role in roles().keys() {
        assert_eq!(server.command(&line(role)).unwrap(), "+OK\r\n", "{kind:?}, {role}");
    }
    server.command(&["ACL", "LOG", "RESET"]).unwrap();
    server
}

fn url(server: &Server, role: &str) -> String {
    server.url().replace("//", &format!("//{NAME}-{role}:PASSWORD@"))
}

fn connection(server: &Server, role: &str) -> redis::Connection {
    // As ours: without `CLIENT SETINFO`, which not all servers know.
    let info = url(server, role).into_connection_info().unwrap();
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    redis::Client::open(info.set_redis_settings(settings)).unwrap().get_connection().unwrap()
}

fn run(connection: &mut redis::Connection, call: &Call) -> RedisResult<Value> {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(call.script.source).arg(call.keys.len()).arg(&*call.keys).arg(&call.args);
    cmd.query(connection)
}

/// Whether it was refused for a missing right; of what a script does, each server says so in its own words.
fn is_refused(answer: &RedisResult<Value>) -> bool {
    const WORDS: [&str; 4] = ["noperm", "no permissions", "can't access", "can't run"];
    let no_right = ErrorKind::Server(ServerErrorKind::NoPerm);
    answer.as_ref().is_err_and(|error| {
        let text = error.to_string().to_lowercase();
        error.kind() == no_right || WORDS.iter().any(|words| text.contains(words))
    })
}

#[test]
fn each_line_names_the_commands_of_the_roles_scripts_and_no_other() {
    for (role, scripts) in roles() {
        let mut needed: BTreeSet<_> = CONNECTION.map(str::to_owned).into();
        for script in SCRIPTS.iter().filter(|script| scripts.contains(script.name)) {
            needed.extend(commands_of(script));
        }
        match role {
            "worker" => needed.extend(OF_WORKERS.map(str::to_owned)),
            // Its scripts' plans do not come to that.
            "viewer" => assert!(!needed.contains("hset") && !needed.contains("del")),
            _ => {}
        }
        let named: BTreeSet<_> = line(role).iter().filter_map(|word| word.strip_prefix('+')).map(str::to_owned).collect();
        assert_eq!(named, needed, "{role}");
    }
}

#[test]
fn each_role_may_do_what_it_must() {
    for kind in Kind::ALL {
        for mode in Mode::EVERY {
            let server = server(kind);
            let busy = Busy::make(&mut Clocked::at(&server.url()), NAME, mode);
            for (role, scripts) in roles() {
                let mut connection = connection(&server, role);
                for (title, call) in busy.calls().into_iter().filter(|(_, call)| scripts.contains(call.script.name)) {
                    let answer = run(&mut connection, &call);
                    assert!(answer.is_ok(), "{kind:?} {mode:?}, {role}, {title}: {answer:?}");
                }
            }
            // Nor was anything refused that a script can do without.
            assert_eq!(server.command(&["ACL", "LOG"]).unwrap(), "*0\r\n");
        }
    }
}

#[tokio::test]
async fn a_worker_with_the_rights_of_one_is_woken_and_works() {
    for kind in Kind::ALL {
        let server = server(kind);
        let queue = Queue::new(NAME).unwrap();
        let connect = |role| Redis::connect(&format!("{}3", url(&server, role))).unwrap();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let handler = move |context: Context, (): ()| {
            tell.send(context.retries()).unwrap();
            async { Err::<(), BoxError>("again".into()) }
        };
        let options = vtrr_queue::worker::Options::new().max_retries(1).autoretry_any().default_retry_delay(Duration::ZERO);
        // Nothing but the channel tells it of tasks.
        let hour = Duration::from_secs(3_600);
        let worker = Worker::builder(queue.clone(), Arc::new(connect("worker"))).poll(hour);
        let worker = worker.sweep_interval(Duration::from_millis(100)).register_with("t", options, handler).build().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let working = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        let producer = connect("producer");
        producer.run(queue.enqueue("a", [Task::new("t", &()).unwrap()]).unwrap()).await.unwrap();
        assert_eq!((told.recv().await, told.recv().await), (Some(0), Some(1)));
        let operator = connect("operator");
        while operator.run(queue.stats()).await.unwrap().dead == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.send(()).unwrap();
        assert_eq!(working.await.unwrap().unwrap().failed, 1);
        assert_eq!(server.command(&["ACL", "LOG"]).unwrap(), "*0\r\n", "{kind:?}");
    }
}

#[test]
fn no_role_reaches_the_server_or_other_keys() {
    let inside = |script: &'static str, key: &'static str| vec!["EVAL", script, "1", key];
    let undeclared = |script: &'static str| vec!["EVAL", script, "0"];
    let refused = [
        vec!["FLUSHALL"],
        vec!["FLUSHDB"],
        vec!["KEYS", "*"],
        vec!["SCAN", "0"],
        vec!["CONFIG", "GET", "*"],
        vec!["SCRIPT", "FLUSH"],
        vec!["ACL", "LIST"],
        vec!["CLIENT", "LIST"],
        vec!["MONITOR"],
        vec!["SHUTDOWN", "NOSAVE"],
        vec!["SWAPDB", "0", "1"],
        vec!["REPLICAOF", "127.0.0.1", "1"],
        vec!["RENAME", "vtrr:files:task", "vtrr:files:gone"],
        vec!["GET", "vtrr:other:current_virtual_time"],
        vec!["HGET", "vtrr:filesystem:task", "x"],
        vec!["HGET", "celery", "x"],
        inside("return redis.call('HGET', KEYS[1], 'x')", "vtrr:other:task"),
        undeclared("return redis.call('HGET', 'vtrr:other:task', 'x')"),
        undeclared("return redis.call('FLUSHALL')"),
        vec!["PUBLISH", "vtrr:other:wake", ""],
        vec!["SUBSCRIBE", "vtrr:other:wake"],
        vec!["PSUBSCRIBE", "*"],
    ];
    let not_of_viewers = [
        vec!["HSET", "vtrr:files:task", "x", "{}"],
        vec!["DEL", "vtrr:files:queue"],
        vec!["PUBLISH", "vtrr:files:wake", ""],
        undeclared("return redis.call('DEL', 'vtrr:files:queue')"),
    ];
    for kind in Kind::ALL {
        let server = server(kind);
        Busy::make(&mut Clocked::at(&server.url()), NAME, Mode::Head);
        Busy::make(&mut Clocked::at(&server.url()), "other", Mode::Head);
        let dump = |name| Clocked::at(&server.url()).keys(name);
        let before = (dump(NAME), dump("other"));
        for role in roles().into_keys() {
            let also = if role == "viewer" { &not_of_viewers[..] } else { &[] };
            for words in refused.iter().chain(also) {
                let mut cmd = redis::cmd(words[0]);
                cmd.arg(&words[1..]);
                let answer = cmd.query(&mut connection(&server, role));
                assert!(is_refused(&answer), "{kind:?}, {role}, {words:?}: {answer:?}");
            }
        }
        let mut connection = connection(&server, "viewer");
        let enqueue = crate::busy::enqueue(&Queue::new(NAME).unwrap(), "a", 90..93);
        assert!(is_refused(&run(&mut connection, &vtrr_queue::Command::call(&enqueue))));
        assert!((dump(NAME), dump("other")) == before, "{kind:?}: something has changed");
    }
}

/// What the document says plainly: EVAL is EVAL, within the queue's keys.
#[test]
fn a_producer_is_as_powerful_as_a_worker_within_the_queue() {
    for kind in Kind::ALL {
        let server = server(kind);
        let busy = Busy::make(&mut Clocked::at(&server.url()), NAME, Mode::Head);
        let mut connection = connection(&server, "producer");
        for title in ["dequeue", "fail", "cancel: heads, a waiting, a delayed one"] {
            let call = busy.calls().into_iter().find(|(it, _)| it == title).unwrap().1;
            let answer = run(&mut connection, &call);
            assert!(answer.is_ok(), "{kind:?}, {title}: {answer:?}");
        }
        redis::cmd("DEL").arg("vtrr:files:waiting").exec(&mut connection).unwrap();
        // And `vtrr:files:*` takes in more than a queue.
        redis::cmd("HSET").arg("vtrr:files:of:others:task").arg("x").arg("{}").exec(&mut connection).unwrap();
    }
}
