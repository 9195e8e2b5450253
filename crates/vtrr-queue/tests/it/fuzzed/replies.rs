//! Replies of a server: whatever comes over the wire, a command reads it or says that it cannot.

use std::fmt::Debug;
use std::time::Duration;

use redis::{ConnectionLike, Parser, RedisResult, Value};
use vtrr_queue::{
    Blocking, Body, Cause, Command, Delivery, ErrorKind, Outcome, Owner, Queue, Settlement, Tagging, Task, TaskId, Token,
};

/// A connection that delivers these bytes, whatever it is asked.
pub(super) struct Wire<'a> {
    bytes: &'a [u8],
    parser: Parser,
}

impl<'a> Wire<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, parser: Parser::new() }
    }
}

impl ConnectionLike for Wire<'_> {
    fn req_packed_command(&mut self, _: &[u8]) -> RedisResult<Value> {
        self.parser.parse_value(&mut self.bytes)
    }
    fn req_packed_commands(&mut self, _: &[u8], _: usize, _: usize) -> RedisResult<Vec<Value>> {
        unreachable!("no pipelines")
    }
    fn get_db(&self) -> i64 {
        0
    }
    fn check_connection(&mut self) -> bool {
        true
    }
    fn is_open(&self) -> bool {
        true
    }
}

/// A letter for the command, then what the connection delivers.
pub fn replies(input: &[u8]) {
    let Some((letter, wire)) = input.split_first() else { return };
    let queue = Queue::new("q").unwrap();
    let (id, other) = (TaskId::new("a").unwrap(), TaskId::new("b").unwrap());
    let (token, owner) = (Token::new("1-1").unwrap(), Owner::new("o").unwrap());
    let second = Duration::from_secs(1);
    let settlements = || {
        let of = |id: &TaskId, outcome| Settlement::new(id.clone(), token.clone(), outcome).unwrap();
        vec![of(&id, Outcome::Ack), of(&other, Outcome::Fail { cause: Cause::Failed, error: "e".into() })]
    };
    let tasks = |n: usize| vec![Task::with_body(Body::from_json("{\"task_name\":\"t\"}").unwrap()); n];
    let ids = || [id.clone(), other.clone()];
    match letter {
        // Two chunks.
        b'E' => ask(wire, queue.enqueue("p", tasks(1_001)).unwrap(), |reply| {
            reply.ids.len() == 1_001 && reply.duplicates.len() <= 1_001
        }),
        b'e' => {
            ask(wire, queue.enqueue("p", tasks(2)).unwrap().tagging(Tagging::All), |reply| reply.duplicates.len() <= 2);
        }
        b'D' => ask(wire, queue.dequeue(5).unwrap(), |reply| reply.settled.is_empty()),
        b'd' => {
            let dequeue = queue.dequeue(5).unwrap().owner(owner, vec![id.clone()]).settle(settlements()).unwrap();
            ask(wire, dequeue, |reply| reply.settled.len() == 2);
        }
        b'S' => ask(wire, queue.settle(settlements()).unwrap(), |reply| reply.len() == 2),
        b's' => ask(wire, queue.fail_owner(owner, Cause::Failed, "e"), |_| true),
        b'k' => ask(wire, queue.claim(id, token, owner, second).unwrap(), |_| true),
        b'X' => ask(wire, queue.extend(&[delivery(&queue)], second).unwrap(), |reply| reply.len() == 1),
        b'x' => ask(wire, queue.extend_owner(owner, second).unwrap(), |_| true),
        b'w' => ask(wire, queue.sweep(), |_| true),
        b'c' => ask(wire, queue.cancel(ids()).unwrap(), |reply| reply.len() == 2),
        b'P' => ask(wire, queue.purge_all(), |_| true),
        b'h' => ask(wire, queue.set_share("p", 2.0).unwrap(), |()| true),
        b'f' => ask(wire, queue.flatten(), |_| true),
        b'u' => ask(wire, queue.unflatten(), |()| true),
        b'l' => ask(wire, queue.dead_letters(0, 5).unwrap(), |_| true),
        b'r' => ask(wire, queue.redrive(ids()).unwrap(), |reply| reply.len() == 2),
        b'y' => ask(wire, queue.discard(ids()).unwrap(), |reply| reply.len() == 2),
        b't' => ask(wire, queue.stats(), |_| true),
        b'p' => ask(wire, queue.partitions(), |_| true),
        b'K' => ask(wire, queue.peek(5).unwrap(), |_| true),
        b'i' => ask(wire, queue.find(id), |_| true),
        _ => {}
    }
}

/// A delivery that can be read.
fn delivery(queue: &Queue) -> Delivery {
    let bytes = |text: &str| vtrr_queue::Value::Bytes(text.into());
    let answer = vec![
        bytes("a"),
        bytes("1-1"),
        vtrr_queue::Value::Int(1),
        vtrr_queue::Value::Int(0),
        vtrr_queue::Value::Int(0),
        bytes("{}"),
    ];
    let (id, token) = (TaskId::new("a").unwrap(), Token::new("1-1").unwrap());
    let mut claim = queue.claim(id, token, Owner::new("o").unwrap(), Duration::from_secs(1)).unwrap();
    match claim.decode(vtrr_queue::Value::List(answer)).unwrap() {
        vtrr_queue::Step::Done(delivery) => delivery.unwrap(),
        vtrr_queue::Step::Again => unreachable!("one step"),
    }
}

fn ask<C: Command>(wire: &[u8], command: C, fits: impl FnOnce(&C::Reply) -> bool)
where
    C::Reply: Debug,
{
    let mut runner = Blocking::new(Wire::new(wire));
    match runner.run(command) {
        Ok(reply) => assert!(fits(&reply), "{reply:?}"),
        Err(error) => {
            let text = error.to_string();
            // The caller's arguments are right. Only a cluster says that the name of the queue is not.
            assert!(error.kind() != ErrorKind::Invalid || text.contains("{files}"), "{text}");
            assert!(text.len() <= 1_000 + 3 * wire.len(), "{} bytes of error for {}", text.len(), wire.len());
        }
    }
}
