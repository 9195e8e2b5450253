//! Shows the play in lines: one for each submission and for each task that starts, on the fair queue.

use std::io::{self, Write as _};

use super::scene::{Event, Scene, Side, USERS};
use super::summary::{self, seconds};

/// The lines above all others.
pub(super) fn open(scene: &Scene) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}\n\n    time  worker  user  task       waited", summary::headline(scene))
}

/// A line, if the event deserves one.
pub(super) fn write(scene: &Scene, event: &Event) -> io::Result<()> {
    let course = scene.course(Side::Fair);
    let mut out = io::stdout().lock();
    match *event {
        Event::Submitted { side: Side::Fair, user, .. } => {
            let (at, of) = (course.submitted[user].unwrap_or_default(), &USERS[user]);
            writeln!(out, "{:>8}  {:>6}  {:<4}  submits {} tasks", seconds(at), "-", of.name, of.tasks)
        }
        Event::Started { side: Side::Fair, user, number, worker, .. } => {
            let services = &course.services;
            let started = services.iter().find(|service| (service.user, service.number) == (user, number));
            let start = started.map(|service| service.start).unwrap_or_default();
            let waited = start.saturating_sub(course.submitted[user].unwrap_or_default());
            let (of, task) = (&USERS[user], format!("{number:>2} of {:<2}", USERS[user].tasks));
            let (start, waited, worker) = (seconds(start), seconds(waited), worker + 1);
            writeln!(out, "{start:>8}  {worker:>6}  {:<4}  {task:<8}  {waited:>7}", of.name)
        }
        _ => Ok(()),
    }
}

/// The order of service on both queues.
pub(super) fn close(scene: &Scene) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out)?;
    for (side, name) in [(Side::Fair, "fair"), (Side::Unfair, "first come, first served")] {
        let order: Vec<_> = scene.course(side).services.iter().map(|service| USERS[service.user].name).collect();
        writeln!(out, "{name:<24}  {}", order.join(" "))?;
    }
    writeln!(out)
}
