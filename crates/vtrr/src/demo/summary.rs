//! What was to be seen: a table, and a few words.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, LineStyle, Table, presets};

use super::scene::{Scene, Side, USERS, WORKERS};

/// What is shown, in one line.
pub(super) fn headline(scene: &Scene) -> String {
    let [a, b, c] = &USERS;
    let order = format!("{} submits {} tasks, then {} {}, then {} {}", a.name, a.tasks, b.name, b.tasks, c.name, c.tasks);
    format!("{order} ({} each, {WORKERS} workers, {})", seconds(scene.task_time), scene.place)
}

/// A time as everything here shows it.
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// How long tasks waited.
struct Waits {
    mean: Duration,
    worst: Duration,
}

impl Waits {
    fn of(waits: &[Duration]) -> Self {
        let count = u32::try_from(waits.len()).unwrap_or(u32::MAX).max(1);
        Self { mean: waits.iter().sum::<Duration>() / count, worst: waits.iter().max().copied().unwrap_or_default() }
    }
}

/// On the fair queue, and on the other.
fn compare(scene: &Scene, users: &[usize]) -> [Waits; 2] {
    Side::BOTH.map(|side| {
        let waits: Vec<_> = users.iter().flat_map(|&user| scene.course(side).waits(user)).collect();
        Waits::of(&waits)
    })
}

/// The table and what it means.
pub(super) fn write(scene: &Scene, out: &mut impl Write) -> io::Result<()> {
    let [a, b, c] = &USERS;
    writeln!(out, "Time from submission to start, measured on both queues:")?;
    writeln!(out, "{}\n", table(scene).trim_fmt())?;
    let means = |user| compare(scene, &[user]).map(|waits| seconds(waits.mean)).join(" instead of ");
    writeln!(out, "On average, {}'s {} tasks waited {} behind all of {}'s.", b.name, b.tasks, means(1), a.name)?;
    writeln!(out, "{}'s {} waited {}; {}'s {} pay: {}.", c.name, c.tasks, means(2), a.name, a.tasks, means(0))?;
    writeln!(out, "Next: try --task-ms 1000, or your own server: REDIS_URL=redis://127.0.0.1/")
}

fn table(scene: &Scene) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_header(["user", "tasks", "mean wait\nfair", "\nfirst come", "worst wait\nfair", "\nfirst come"]);
    let everybody: Vec<_> = (0..USERS.len()).collect();
    let rows = USERS.iter().enumerate().map(|(user, of)| (of.name, vec![user])).chain([("all", everybody)]);
    for (name, users) in rows {
        let [fair, unfair] = compare(scene, &users);
        let tasks: usize = users.iter().map(|&user| USERS[user].tasks).sum();
        let times = [fair.mean, unfair.mean, fair.worst, unfair.worst].map(seconds);
        table.add_row([name.to_owned(), tasks.to_string()].into_iter().chain(times));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
