//! `vtrr demo --plain`: who is served when, the table, and what happens when the server cannot be used.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

#[allow(dead_code, reason = "made for the tests of vtrr-queue, which use all of it")]
#[path = "../../vtrr-queue/tests/it/resp.rs"]
mod resp;
#[allow(dead_code, reason = "made for the tests of vtrr-queue, which use all of it")]
#[path = "../../vtrr-queue/tests/it/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use server::{Kind, Server};

/// The command, without the server that this environment may name.
fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vtrr"));
    command.arg("demo").args(args).env_remove("REDIS_URL");
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The tasks in the order in which they started, as (user, number).
fn services(output: &Output) -> Vec<(String, usize)> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let started = |words: &Vec<String>| match words.as_slice() {
        // 0.30 s  2  A  2 of 10  0.30 s
        [_, _, _, user, number, of, ..] if of == "of" => Some((user.clone(), number.parse().unwrap())),
        _ => None,
    };
    text(&output.stdout).lines().map(words).filter_map(|words| started(&words)).collect()
}

/// It has ended well, and shows a fair order, a table and what it means.
fn assert_shows_fairness(output: &Output) {
    assert!(output.status.success(), "{output:?}");
    let services = services(output);
    let all =
        [("A", 10), ("B", 2), ("C", 5)].iter().flat_map(|&(user, tasks)| (1..=tasks).map(move |n| (user.to_owned(), n)));
    assert_eq!(services.iter().cloned().collect::<BTreeSet<_>>(), all.collect(), "{services:?}");
    assert_eq!(services.len(), 17, "each task once: {services:?}");

    // With room for what a busy machine does: B's last is the fifth to be handed out, A's sixth the thirteenth.
    let place = |user: &str, number| services.iter().position(|(u, n)| (u.as_str(), *n) == (user, number)).unwrap();
    assert!(place("B", 2) < place("A", 6) && place("C", 5) < place("A", 10), "{services:?}");

    let stdout = text(&output.stdout);
    let row = |user: &str| stdout.lines().find(|line| line.starts_with(&format!(" {user} "))).unwrap().to_owned();
    for (user, tasks) in [("A", "10"), ("B", "2"), ("C", "5"), ("all", "17")] {
        let row = row(user);
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!((cells[1], cells.len()), (tasks, 10), "{row}");
    }
    let cells = row("B");
    let cells: Vec<f64> = cells.split_whitespace().filter_map(|cell| cell.parse().ok()).collect();
    assert!(cells[1] < cells[2] && cells[3] < cells[4], "fair before first come: {cells:?}");
    assert!(stdout.contains("On average, B's 2 tasks waited "), "{stdout}");
    let unfair = stdout.lines().find_map(|line| line.strip_prefix("first come, first served  ")).unwrap();
    assert!(unfair.starts_with("A A A A A A A A ") && unfair.ends_with(" C C C") && unfair.len() == 33, "{unfair}");
    assert!(!stdout.contains('\u{1b}'), "no colours where there is no terminal: {stdout:?}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn each_user_is_served_in_turn() {
    assert_shows_fairness(&demo(&["--plain", "--task-ms", "50"]).output().unwrap());
}

#[test]
fn lines_are_printed_where_there_is_no_terminal_and_an_empty_url_is_none() {
    assert_shows_fairness(&demo(&["--task-ms", "50"]).env("REDIS_URL", "").output().unwrap());
}

#[test]
fn a_server_shows_the_same_and_is_left_as_it_was() {
    let server = Server::options(Kind::Redis).password("secret").start();
    let output = demo(&["--task-ms", "50"]).env("REDIS_URL", server.url()).output().unwrap();
    assert_shows_fairness(&output);
    assert!(text(&output.stdout).contains(&format!("on 127.0.0.1:{}", server.port())), "{output:?}");
    assert!(!text(&output.stdout).contains("secret"), "{output:?}");
    assert_eq!(server.command(&["DBSIZE"]).unwrap(), ":0\r\n");
}

#[test]
fn interrupted_it_leaves_the_server_as_it_was() {
    let server = Server::start(Kind::Redis);
    let mut child = demo(&["--task-ms", "200", "--url", &server.url()]).stdout(Stdio::null()).spawn().unwrap();
    while server.command(&["DBSIZE"]).unwrap() == ":0\r\n" {
        std::thread::yield_now();
    }
    let killed = Command::new("sh").args(["-c", "kill -s TERM \"$1\"", "kill", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(server.command(&["DBSIZE"]).unwrap(), ":0\r\n");
}

#[test]
fn a_server_that_cannot_be_reached_is_one_line_and_exit_code_1() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = demo(&[]).env("REDIS_URL", format!("redis://user:secret@127.0.0.1:{free}/")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = text(&output.stderr);
    assert!(message.starts_with(&format!("vtrr: 127.0.0.1:{free}: the server is not available")), "{message}");
    assert_eq!((message.lines().count(), message.contains("secret")), (1, false), "{message}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn neither_errors_nor_help_show_a_password() {
    for args in [&["--url", "http://:secret@localhost/"][..], &["--help"], &["--task-ms", "0"]] {
        let output = demo(args).env("REDIS_URL", "redis://:secret@localhost/").output().unwrap();
        assert!(!format!("{output:?}").contains("secret"), "{output:?}");
    }
}

#[test]
fn whoever_reads_may_stop_reading() {
    let mut child = demo(&["--task-ms", "10"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    drop(child.as_mut().unwrap().stdout.take());
    let output = child.unwrap().wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}
