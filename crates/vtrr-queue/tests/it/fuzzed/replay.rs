//! The inputs that are kept.

use std::fs;
use std::path::Path;

use super::payload::stored;
use crate::server::{Kind, Server};

/// Runs a target on each of its inputs.
#[allow(clippy::print_stdout, reason = "says which one, if one fails")]
fn replay(target: &str, mut run: impl FnMut(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&corpus).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} inputs in {}", files.len(), corpus.display());
    for file in files {
        println!("{}", file.display());
        run(&fs::read(&file).unwrap());
    }
}

#[test]
fn kept_replies() {
    replay("replies", super::replies);
}

#[test]
fn kept_payloads() {
    replay("payload", super::payload);
}

#[test]
fn kept_servers_of_a_worker() {
    replay("worker", super::worker);
}

/// Scripts find in a payload what the crate finds there, and keep it in short without a change.
#[test]
fn scripts_read_kept_payloads_as_the_crate_does() {
    type Read = (Option<Vec<u8>>, i64, Option<Vec<u8>>, Vec<u8>);
    const READ: &str = "
        local partition, weight = read(ARGV[1])
        local short = pack(ARGV[1])
        return {partition or false, weight or 0, partition_of(ARGV[1]) or false, short and (unpack_waiting(short)) or ARGV[1]}";
    let server = Server::start(Kind::Redis);
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let source = [include_str!("../../../src/command/base.lua"), READ].concat();
    let keys: Vec<_> = (0..22).map(|n| format!("key-{n}")).collect();
    let mut known = 0;
    replay("payload", |input| {
        let mut script = redis::cmd("EVAL");
        script.arg(&source).arg(keys.len()).arg(&keys).arg(input);
        let (partition, weight, again, unpacked): Read = script.query(&mut connection).unwrap();
        assert_eq!((unpacked.as_slice(), &again), (input, &partition));
        // A prefix that the crate does not take (a weight of 0, say) is none that anybody has written.
        let payload = stored(input);
        if let Some(ours) = payload.partition() {
            assert_eq!((partition.unwrap(), weight), (ours.as_str().into(), payload.weight().get().into()));
            known += 1;
        }
    });
    assert!(known >= 5, "{known}");
}
