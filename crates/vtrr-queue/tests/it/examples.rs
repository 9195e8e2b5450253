//! The examples are programs, and do what they say. `cargo test` builds them.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use crate::server::{Kind, Server, signal};

fn example(name: &str) -> Command {
    let deps = env::current_exe().unwrap();
    let program: PathBuf = deps.parent().unwrap().with_file_name("examples").join(name);
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    Command::new(program)
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn one_process_serves_three_customers_in_turn() {
    let output = output_of(&mut example("one_process"));
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines.len(), 12, "{output}");
    assert_eq!(lines[11], "11 done");
    let position = |file: &str| lines.iter().position(|line| *line == file).unwrap();
    // bob came after ann's six, and is done after two rounds.
    assert!(position("bob-2.pdf") < position("ann-3.pdf"), "{output}");
    // carl's heavy second task makes his third wait longer than ann's.
    assert!(position("carl-3.pdf") > position("ann-4.pdf"), "{output}");
}

#[test]
fn typed_retry_shows_every_ending() {
    let output = output_of(&mut example("typed_retry"));
    for line in
        ["sent Mail", "send: done after 2 retries", "import: done after 2 retries", "dead letter: counted for too long"]
    {
        assert!(output.contains(line), "{line:?} is missing: {output}");
    }
}

#[test]
fn a_producer_and_a_consumer_meet_on_a_server() {
    let server = Server::start(Kind::Redis);
    let log = env::temp_dir().join(format!("vtrr-examples-{}", std::process::id()));
    let settings = [("REDIS_URL", server.url()), ("QUEUE", "examples".into()), ("LOG", log.display().to_string())];
    let mut consumer = example("consumer").envs(settings.clone()).stdout(Stdio::null()).spawn().unwrap();
    let output = output_of(example("producer").envs(settings).args(["ann", "20", "bob", "3"]));
    assert_eq!(output.lines().collect::<Vec<_>>(), ["ann: 20 tasks", "bob: 3 tasks"]);
    let ended = || fs::read_to_string(&log).unwrap_or_default().lines().filter(|line| line.starts_with("end ")).count();
    while ended() < 23 {
        assert!(consumer.try_wait().unwrap().is_none(), "the consumer stopped");
        thread::sleep(Duration::from_millis(5));
    }
    signal("TERM", &consumer.id().to_string());
    assert!(consumer.wait().unwrap().success());
    assert_eq!(ended(), 23);
    fs::remove_file(&log).unwrap();
}
