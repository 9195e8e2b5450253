//! The scene: who takes part, and what has happened so far on the two queues.

use std::time::{Duration, Instant};

/// A user: a partition of the fair queue.
pub(super) struct User {
    pub(super) name: &'static str,
    pub(super) tasks: usize,
}

/// In the order in which they submit.
pub(super) const USERS: [User; 3] =
    [User { name: "A", tasks: 10 }, User { name: "B", tasks: 2 }, User { name: "C", tasks: 5 }];

/// Workers of each queue, each with one task at a time.
pub(super) const WORKERS: usize = 2;

/// Tasks of all users.
pub(super) const TASKS: usize = USERS[0].tasks + USERS[1].tasks + USERS[2].tasks;

/// The two queues. They get the same tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Each user is a partition.
    Fair,
    /// All are one partition: first come, first served.
    Unfair,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Fair, Self::Unfair];
}

/// What happens.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A user has submitted all tasks.
    Submitted { side: Side, user: usize, at: Instant },
    /// A worker begins with a task of a user, numbered from 1.
    Started { side: Side, user: usize, number: usize, worker: usize, at: Instant },
    /// It has ended.
    Ended { side: Side, user: usize, number: usize, at: Instant },
}

/// A task in the hands of a worker. Times count from the first submission.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) user: usize,
    pub(super) number: usize,
    pub(super) worker: usize,
    pub(super) start: Duration,
    pub(super) end: Option<Duration>,
}

/// What has happened on one queue.
#[derive(Debug, Default)]
pub(super) struct Course {
    pub(super) submitted: [Option<Duration>; USERS.len()],
    /// In the order in which they started.
    pub(super) services: Vec<Service>,
}

/// What has happened.
pub(super) struct Scene {
    pub(super) task_time: Duration,
    /// Where the queues are, in words.
    pub(super) place: String,
    start: Option<Instant>,
    courses: [Course; 2],
}

impl Course {
    pub(super) fn services_of(&self, user: usize) -> impl Iterator<Item = &Service> + Clone {
        self.services.iter().filter(move |service| service.user == user)
    }

    /// Tasks of a user that have been submitted and not started.
    pub(super) fn waiting(&self, user: usize) -> usize {
        let submitted = if self.submitted[user].is_some() { USERS[user].tasks } else { 0 };
        submitted.saturating_sub(self.services_of(user).count())
    }

    /// The task of a user that ended last, once all have.
    pub(super) fn last(&self, user: usize) -> Option<&Service> {
        let ended = self.services_of(user).filter(|service| service.end.is_some());
        if ended.clone().count() < USERS[user].tasks { None } else { ended.max_by_key(|service| service.end) }
    }

    /// What a worker does now.
    pub(super) fn current(&self, worker: usize) -> Option<&Service> {
        self.services.iter().rfind(|service| service.worker == worker && service.end.is_none())
    }

    /// How long the tasks of a user have waited, from submission to start.
    pub(super) fn waits(&self, user: usize) -> Vec<Duration> {
        let submitted = self.submitted[user].unwrap_or_default();
        self.services_of(user).map(|service| service.start.saturating_sub(submitted)).collect()
    }
}

impl Scene {
    pub(super) fn new(task_time: Duration, place: &str) -> Self {
        Self { task_time, place: place.to_owned(), start: None, courses: Default::default() }
    }

    pub(super) fn course(&self, side: Side) -> &Course {
        &self.courses[side as usize]
    }

    /// Takes note of an event.
    pub(super) fn take(&mut self, event: &Event) {
        match *event {
            Event::Submitted { side, user, at } => {
                let at = self.since_start(at);
                self.courses[side as usize].submitted[user] = Some(at);
            }
            Event::Started { side, user, number, worker, at } => {
                let start = self.since_start(at);
                let services = &mut self.courses[side as usize].services;
                // A task that is delivered twice counts once.
                if !services.iter().any(|service| (service.user, service.number) == (user, number)) {
                    services.push(Service { user, number, worker, start, end: None });
                }
            }
            Event::Ended { side, user, number, at } => {
                let end = self.since_start(at);
                let services = &mut self.courses[side as usize].services;
                let service = services.iter_mut().find(|service| (service.user, service.number) == (user, number));
                if let Some(service) = service {
                    service.end.get_or_insert(end);
                }
            }
        }
    }

    /// The time from the first event to this moment.
    pub(super) fn since_start(&mut self, at: Instant) -> Duration {
        at.saturating_duration_since(*self.start.get_or_insert(at))
    }

    /// Whether all tasks of both queues are done.
    pub(super) fn is_over(&self) -> bool {
        self.courses.iter().all(|course| (0..USERS.len()).all(|user| course.last(user).is_some()))
    }

    /// How long it has lasted, or did last.
    pub(super) fn elapsed(&self) -> Duration {
        if self.is_over() {
            let ends = self.courses.iter().flat_map(|course| &course.services).filter_map(|service| service.end);
            return ends.max().unwrap_or_default();
        }
        self.start.map_or(Duration::ZERO, |start| start.elapsed())
    }

    /// How long all tasks take if no worker is ever idle and nothing else takes time.
    pub(super) fn expected(&self) -> Duration {
        self.task_time.mul_f64(TASKS.div_ceil(WORKERS) as f64)
    }
}
