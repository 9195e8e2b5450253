//! A call whose reply is lost has run, and nobody knows: repeated as it was, it leaves the queue as if it had run once.

use std::fmt::Debug;
use std::time::Duration;

use vtrr_queue::{
    Blocking, Body, Cause, Command, ErrorKind, Outcome, Queue, Released, Result, Settlement, Step, Tagging, Unfinished,
};

use crate::busy::{Busy, Mode, enqueue, id, owner, task};
use crate::clocked::{Clocked, Dump, convert};
use crate::proxy::Proxy;
use crate::server::{Kind, Server};
use crate::world::seconds;

const NAME: &str = "q";

/// A server behind a proxy that loses replies.
struct Bench {
    server: Server,
    proxy: Proxy,
    clocked: Clocked,
    mode: Mode,
}

impl Bench {
    fn new(kind: Kind, mode: Mode) -> Self {
        let server = Server::start(kind);
        let proxy = Proxy::start(server.port());
        let clocked = Clocked::at(&proxy.url());
        Self { server, proxy, clocked, mode }
    }

    fn busy(&mut self) -> Busy {
        assert_eq!(self.server.command(&["FLUSHALL"]).unwrap(), "+OK\r\n");
        Busy::make(&mut self.clocked, NAME, self.mode)
    }

    /// Runs a command; the reply to its call number `lost`, from 0, is lost, and that call is repeated. Answers how many
    /// calls it took, too.
    fn run_losing<C: Command>(&mut self, mut command: C, lost: usize) -> (Result<C::Reply>, usize) {
        for calls in 0.. {
            let call = command.call();
            if calls == lost {
                self.proxy.drop_next_reply();
                assert!(self.clocked.send(&call).is_err() && !self.proxy.is_armed());
                self.clocked.reconnect();
            }
            match command.decode(convert(self.clocked.send(&call).unwrap())) {
                Ok(Step::Done(reply)) => return (Ok(reply), calls + 1),
                Ok(Step::Again) => {}
                Err(error) => return (Err(command.interrupted(error)), calls + 1),
            }
        }
        unreachable!()
    }

    /// Compares a command that ran once with one of which each reply was lost in turn: what is stored, and the answers.
    fn check<C: Command<Reply: Debug>>(&mut self, title: &str, answers: Answers, command: impl Fn(&Busy) -> C) {
        let busy = self.busy();
        let before = self.clocked.dump(NAME);
        let once = self.clocked.run(command(&busy));
        let expected = self.clocked.dump(NAME);
        let mut lost = 0;
        loop {
            let title = format!("{:?}, {title}, reply {lost} lost", self.mode);
            let busy = self.busy();
            assert_eq!(self.clocked.dump(NAME), before, "{title}: not the same to begin with");
            let (answer, calls) = self.run_losing(command(&busy), lost);
            let differs = difference(&expected, &self.clocked.dump(NAME));
            assert!(differs.is_empty(), "{title}:\n{differs}");
            let (once, answer) = (format!("{once:?}"), format!("{answer:?}"));
            match answers {
                Answers::Equal => assert_eq!(answer, once, "{title}"),
                Answers::Gone => assert_eq!(answer, once.replace("Done", "Gone"), "{title}"),
                Answers::HandedOutAgain => {
                    assert_eq!(answer.replace("Lost", "Gone"), once.replace("Done", "Gone"), "{title}");
                }
                Answers::Differ => {}
            }
            lost += 1;
            if lost == calls {
                return;
            }
        }
    }
}

/// How the answer of a repeated call compares to the lost one.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    Equal,
    /// What was done is reported as gone: after one's own repeated call that is success.
    Gone,
    /// So it is; but what was given back and handed out again, by the lost call itself here, is reported as lost.
    HandedOutAgain,
    Differ,
}

fn difference(expected: &Dump, found: &Dump) -> String {
    let keys = expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key)));
    let differ = keys.filter(|key| expected.get(*key) != found.get(*key));
    let lines = differ.map(|key| format!("{key}: {:?}\n instead of {:?}", found.get(key), expected.get(key)));
    lines.collect::<Vec<_>>().join("\n")
}

fn every_command(kind: Kind, mode: Mode) {
    use Answers::{Differ, Equal, Gone, HandedOutAgain};
    let bench = &mut Bench::new(kind, mode);
    let release = |delay_ms, blame: bool| Outcome::Release {
        delay_ms,
        how: if blame { Released::lost("a reason") } else { Released::Unrun },
    };
    let retry = |delay_ms| Outcome::Retry { delay_ms, body: None };
    let other = Body::from_json(r#"{"task_name":"other"}"#).unwrap();
    let retry_as_other = |delay_ms| Outcome::Retry { delay_ms, body: Some(other.clone()) };
    let given = |delay_ms, how| Outcome::Release { delay_ms, how };
    let fail = || Outcome::Fail { cause: Cause::Failed, error: "no".into() };
    let settlements = |busy: &Busy, outcomes: &[(&str, Outcome)]| -> Vec<Settlement> {
        outcomes.iter().map(|(id, outcome)| busy.settlement(id, outcome.clone()).unwrap()).collect()
    };

    bench.check("enqueue", Equal, |busy| enqueue(&busy.queue, "new", 0..3));
    bench.check("enqueue behind others", Equal, |busy| enqueue(&busy.queue, "a", 30..33));
    bench.check("enqueue duplicates", Equal, |busy| {
        busy.queue.enqueue("b", ["b0", "b2", "b4", "b2", "b9"].map(task)).unwrap().request("r").unwrap()
    });
    bench.check("enqueue a conflict", Equal, |busy| {
        busy.queue.enqueue("b", ["b8", "a7"].map(task)).unwrap().request("r").unwrap()
    });
    let busy = bench.busy();
    let room = 2_500 + bench.clocked.run(busy.queue.stats()).unwrap().queued;
    bench.check("enqueue several chunks", Equal, |busy| enqueue(&busy.queue, "new", 0..2_500));
    bench.check("enqueue several chunks up to a bound", Equal, |busy| {
        enqueue(&busy.queue, "new", 0..2_500).max_queued(room).unwrap().max_queued_per_partition(2_500).unwrap()
    });
    bench.check("enqueue over a bound", Equal, |busy| enqueue(&busy.queue, "new", 0..2_500).max_queued(room - 1).unwrap());

    bench
        .check("dequeue", Equal, |busy| busy.queue.dequeue(5).unwrap().owner(owner("w3"), Vec::new()).request("r").unwrap());
    bench.check("dequeue, gives back", Equal, |busy| busy.next_of_w1(3));
    bench.check("dequeue, settles for good", Gone, |busy| {
        let outcomes = [("a4", Outcome::Ack), ("a5", retry_as_other(9_000)), ("b1", fail())];
        busy.next_of_w1(9).settle(settlements(busy, &outcomes)).unwrap()
    });
    bench.check("dequeue, settles", HandedOutAgain, |busy| {
        let outcomes = [("a4", Outcome::Ack), ("a5", retry_as_other(0)), ("b1", release(0, false))];
        busy.next_of_w1(9).settle(settlements(busy, &outcomes)).unwrap()
    });

    for (title, outcomes) in [
        ("ack", vec![("a4", Outcome::Ack)]),
        ("release", vec![("a4", release(0, false)), ("a5", release(0, false)), ("b1", release(9_000, false))]),
        ("release with blame", vec![("a4", release(0, true)), ("b1", release(9_000, true))]),
        ("release that ran", vec![("a4", given(0, Released::Ran)), ("b1", given(9_000, Released::Ran))]),
        ("release unknown", vec![("a4", given(0, Released::unknown("no handler")))]),
        ("retry", vec![("a5", retry_as_other(0)), ("a4", retry(0)), ("b1", retry_as_other(9_000))]),
        ("fail", vec![("b1", fail())]),
    ] {
        bench.check(title, Gone, |busy| busy.queue.settle(settlements(busy, &outcomes)).unwrap());
    }
    bench.check("release_owner", Differ, |busy| busy.queue.release_owner(owner("w1"), Released::Unrun));
    bench.check("fail_owner", Differ, |busy| busy.queue.fail_owner(owner("w1"), Cause::Failed, "no"));
    bench.check("claim", Equal, Busy::claim_a6);
    bench.check("extend", Equal, |busy| {
        busy.queue.extend(&[busy.deliveries["a4"].clone(), busy.deliveries["a0"].clone()], seconds(9)).unwrap()
    });
    bench.check("extend_owner", Equal, |busy| busy.queue.extend_owner(owner("w1"), seconds(9)).unwrap());

    bench.check("sweep", Differ, |busy| busy.queue.sweep());
    bench.check("cancel", Differ, |busy| {
        busy.queue.cancel(["a2", "b2", "s1", "d0", "d1", "old", "a4", "b0"].map(id)).unwrap()
    });
    bench.check("purge", Differ, |busy| busy.queue.purge("a").unwrap());
    bench.check("purge_all", Differ, |busy| busy.queue.purge_all());
    for share in [7.0, 0.3, 3.7] {
        for partition in ["a", "b", "d:%", "e", "s", "new"] {
            bench.check("set_share", Equal, |busy| busy.queue.set_share(partition, share).unwrap());
        }
    }
    bench.check("clear_share", Equal, |busy| busy.queue.clear_share("a").unwrap());
    bench.check("flatten", Equal, |busy| busy.queue.flatten());
    bench.check("unflatten", Equal, |busy| busy.queue.unflatten());
    bench.check("redrive", Differ, |busy| busy.queue.redrive([id("b0"), id("x0"), id("a4")]).unwrap());
    bench.check("discard", Differ, |busy| busy.queue.discard([id("b0"), id("a4")]).unwrap());

    bench.check("dead_letters", Equal, |busy| busy.queue.dead_letters(0, 9).unwrap());
    bench.check("stats", Equal, |busy| busy.queue.stats());
    bench.check("partitions", Equal, |busy| busy.queue.partitions());
    bench.check("peek", Equal, |busy| busy.queue.peek(9).unwrap());
    bench.check("find", Equal, |busy| busy.queue.find(id("a4")));
}

#[test]
fn every_command_repeated_redis_7() {
    for mode in Mode::EVERY {
        every_command(Kind::Redis, mode);
    }
}

#[test]
fn every_command_repeated_valkey_8() {
    every_command(Kind::Valkey, Mode::Head);
}

#[test]
fn every_command_repeated_redis_6_2() {
    every_command(Kind::Redis62, Mode::Head);
}

/// C07.
#[test]
fn what_a_lost_reply_handed_out_comes_with_the_owners_next_call() {
    for kind in Kind::ALL {
        let mut bench = Bench::new(kind, Mode::Head);
        let (queue, worker) = (Queue::new(NAME).unwrap(), owner("w"));
        bench.clocked.set_clock(1_000_000);
        bench.clocked.run(enqueue(&queue, "a", 0..4)).unwrap();
        let first = queue.dequeue(1).unwrap().owner(worker.clone(), Vec::new());
        let a0 = bench.clocked.run(first).unwrap().deliveries.remove(0);
        let next = || queue.dequeue(2).unwrap().owner(worker.clone(), vec![a0.id.clone()]);
        bench.proxy.drop_next_reply();
        assert!(bench.clocked.send(&next().call()).is_err());
        bench.clocked.reconnect();
        let found = bench.clocked.run(queue.find(id("a1"))).unwrap().unwrap();
        assert_eq!(found.deliveries, 1);
        // Another worker does not get them before that.
        let other = bench.clocked.run(queue.dequeue(1).unwrap()).unwrap().deliveries;
        assert_eq!(other[0].id, id("a3"));
        let again = bench.clocked.run(next()).unwrap().deliveries;
        let ids: Vec<_> = again.iter().map(|delivery| (delivery.id.as_str(), delivery.deliveries)).collect();
        assert_eq!(ids, [("a1", 2), ("a2", 2)]);
        let all: Vec<_> = again.iter().chain(&other).chain([&a0]).map(Settlement::ack).collect();
        let done = bench.clocked.run(queue.settle(all).unwrap()).unwrap();
        assert!(done.iter().all(|settled| *settled == vtrr_queue::Settled::Done), "{done:?}");
        let keys: Vec<_> = bench.clocked.keys(NAME).into_keys().collect();
        assert_eq!(keys, ["meta", "request"]);
    }
}

/// A call of several chunks breaks off in the third one and is made again. Answers how many of its tasks were duplicates.
fn a_long_enqueue(tagging: Tagging, fault: fn(&Proxy), stored: u64, forgotten: bool) -> usize {
    let mut bench = Bench::new(Kind::Redis, Mode::Head);
    let queue = Queue::new(NAME).unwrap().tagging(tagging);
    let long = || enqueue(&queue, "a", 0..3_500);
    let begin = |bench: &mut Bench| {
        assert_eq!(bench.server.command(&["FLUSHALL"]).unwrap(), "+OK\r\n");
        bench.clocked.set_clock(1_000_000);
        bench.clocked.run(enqueue(&queue, "b", 0..3)).unwrap();
    };
    begin(&mut bench);
    bench.clocked.run(long()).unwrap();
    let expected = bench.clocked.dump(NAME);

    begin(&mut bench);
    let mut command = long();
    for _ in 0..2 {
        let answer = bench.clocked.send(&command.call()).unwrap();
        assert!(matches!(command.decode(convert(answer)), Ok(Step::Again)));
    }
    fault(&bench.proxy);
    assert!(bench.clocked.send(&command.call()).is_err() && !bench.proxy.is_armed());
    bench.clocked.reconnect();
    assert_eq!(bench.clocked.run(queue.stats()).unwrap().queued, 3 + stored);
    if forgotten {
        bench.server.command(&["DEL", "vtrr:q:request", "vtrr:q:answer"]).unwrap();
    }
    let enqueued = bench.clocked.run(long()).unwrap();
    assert_eq!(enqueued.ids.len(), 3_500);
    let mut found = bench.clocked.dump(NAME);
    if forgotten {
        for key in ["request", "answer"] {
            found.remove(key);
        }
        found.extend(expected.get_key_value("request").map(|(key, fields)| (key.clone(), fields.clone())));
    }
    let differs = difference(&expected, &found);
    assert!(differs.is_empty(), "{differs:.2000}");
    enqueued.duplicates.len()
}

#[test]
fn a_long_enqueue_that_broke_off_is_finished() {
    for tagging in [Tagging::Head, Tagging::All] {
        assert_eq!(a_long_enqueue(tagging, Proxy::drop_next_reply, 3_000, false), 0);
        assert_eq!(a_long_enqueue(tagging, Proxy::cut_before_next_request, 2_000, false), 0);
        // So late that the request is forgotten; the ids are not.
        assert_eq!(a_long_enqueue(tagging, Proxy::drop_next_reply, 3_000, true), 3_000);
    }
}

#[test]
fn the_error_of_a_long_enqueue_says_what_is_needed_to_finish_it() {
    let bench = Bench::new(Kind::Redis, Mode::Head);
    let queue = Queue::new(NAME).unwrap();
    let connect = || redis::Client::open(bench.proxy.url()).unwrap().get_connection().unwrap();
    let tasks = || (0..3_500).map(|n| vtrr_queue::Task::new("resize", &(n,)).unwrap());
    let command = queue.enqueue("a", tasks()).unwrap();
    let ids: Vec<_> = command.ids().cloned().collect();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while bench.server.command(&["LLEN", "vtrr:q:lane:=a"]).unwrap() == ":0\r\n" {
                std::thread::sleep(Duration::from_micros(100));
            }
            bench.proxy.drop_next_reply();
        });
        Blocking::new(connect()).run(command).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let unfinished: Unfinished = error.unfinished().unwrap().clone();
    assert_eq!(unfinished.ids, ids);
    assert!(unfinished.stored.is_multiple_of(1_000) && unfinished.stored < 3_500, "{}", unfinished.stored);
    assert!(error.to_string().contains(&format!("{} of 3500 tasks stored", unfinished.stored)), "{error}");
    let with_ids = tasks().zip(unfinished.ids).map(|(task, id)| task.id(id));
    let again = queue.enqueue("a", with_ids).unwrap().request(unfinished.request).unwrap();
    let enqueued = Blocking::new(connect()).run(again).unwrap();
    assert_eq!((enqueued.ids, enqueued.duplicates), (ids, Vec::new()));
    let stats = Blocking::new(connect()).run(queue.stats()).unwrap();
    assert_eq!((stats.queued, stats.totals["enqueued"]), (3_500, 3_500));
}
