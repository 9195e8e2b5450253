//! Producers and workers of both kinds at once on one queue: real Celery workers of 0.1.0 beside the Rust worker.

use std::process::{Child, Stdio};
use std::time::Duration;

use redis::AsyncCommands;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Context, Redis, Runner, Tagging, Task, Worker};

use crate::server::signal;

use super::{Job, Ours, python, server, theirs_enqueue};

/// A Celery worker of 0.1.0, in a process group of its own. It ends with its input, which the test process holds.
struct Celery(Child);

impl Celery {
    fn start(queue: &str, pool: &[&str]) -> Self {
        use std::os::unix::process::CommandExt;
        let mut command = python();
        command.args(["-m", "celery", "-A", "reference", "worker", "-Q", &format!("celery:{queue}"), "-l", "error"]);
        command.args(["--without-gossip", "--without-mingle", "--without-heartbeat"]).args(pool);
        command.env("REFERENCE_QUEUE", queue).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self(command.spawn().unwrap())
    }

    /// Warm shutdown: what runs ends.
    async fn stop(mut self) {
        drop(self.0.stdin.take());
        let ended = async {
            while self.0.try_wait().unwrap().is_none() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), ended).await.expect("the Celery worker ends");
    }
}

impl Drop for Celery {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            signal("KILL", &format!("-{}", self.0.id()));
            let _ = self.0.wait();
        }
    }
}

const EACH: usize = 500;
const STARTING: usize = 20;

fn partition(number: usize) -> String {
    format!("p{}", number / 5 % 7)
}

fn job(number: usize) -> Job {
    Job { kwargs: "{}", id: format!("theirs-{number}"), ..Job::new(number) }
}

async fn runs(name: &str, redis: &mut redis::aio::MultiplexedConnection) -> Vec<String> {
    redis.lrange(format!("runs:{name}"), 0, -1).await.unwrap()
}

async fn every_task_runs_exactly_once(tagging: Tagging, pool: &[&str]) {
    let name = format!("together-{tagging}");
    let runner = Redis::connect(&server().url()).unwrap();
    let client = redis::Client::open(server().url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let queue = Ours::new(&name).queue.tagging(tagging);
    let celery = Celery::start(&name, pool);
    let until = async |redis: &mut _, wanted: usize| {
        let reached = async {
            while runs(&name, redis).await.len() < wanted {
                sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(Duration::from_secs(60), reached).await.is_err() {
            let stats = runner.run(queue.stats()).await;
            panic!("{} of {wanted} ran; {stats:?}", runs(&name, redis).await.len());
        }
    };

    // 0.1.0's worker is up and has run something before ours starts.
    theirs_enqueue(&name, "first", &(0..STARTING).map(job).collect::<Vec<_>>());
    until(&mut redis, 1).await;
    let (record, key) = (redis.clone(), format!("runs:{name}"));
    let worker = Worker::builder(queue.clone(), runner.clone())
        .concurrency(4)
        .poll(Duration::from_millis(20))
        .sweep_interval(Duration::from_millis(50))
        .register("reference.record", move |_: Context, (number,): (usize,)| {
            let (mut record, key) = (record.clone(), key.clone());
            async move {
                sleep(Duration::from_millis(4)).await;
                record.rpush::<_, _, ()>(key, format!("rust [{number}] {{}}")).await?;
                Ok::<_, BoxError>(())
            }
        })
        .build()
        .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let working = tokio::spawn(worker.run_until(async {
        let _ = stopped.await;
    }));
    let producing = spawn_blocking({
        let name = name.clone();
        move || {
            for first in (STARTING..EACH).step_by(5) {
                theirs_enqueue(&name, &partition(first), &(first..first + 5).map(job).collect::<Vec<_>>());
            }
        }
    });
    for first in (EACH..2 * EACH).step_by(5) {
        let tasks = (first..first + 5).map(|number| Task::new("reference.record", &[number]).unwrap());
        runner.run(queue.enqueue(partition(first), tasks).unwrap()).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }
    producing.await.unwrap();
    until(&mut redis, 2 * EACH).await;
    stop.send(()).unwrap();
    let summary = working.await.unwrap().unwrap();
    celery.stop().await;

    let runs = runs(&name, &mut redis).await;
    let by_us = runs.iter().filter(|run| run.starts_with("rust ")).count();
    assert!((50..=2 * EACH - 50).contains(&by_us), "both kinds of workers take part: {by_us} by ours");
    assert_eq!(summary.succeeded, by_us as u64, "{summary:?}");
    let mut tasks: Vec<_> = runs.iter().map(|run| run.split_once(' ').unwrap().1.to_owned()).collect();
    let mut wanted: Vec<_> = (0..2 * EACH).map(|number| format!("[{number}] {{}}")).collect();
    tasks.sort();
    wanted.sort();
    assert_eq!(tasks, wanted);
    runner.run(queue.sweep()).await.unwrap();
    Ours::new(&name).assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_mode_all_every_task_of_either_side_runs_exactly_once() {
    every_task_runs_exactly_once(Tagging::All, &["-P", "prefork", "-c", "2"]).await;
}

/// Workers of 0.1.0 take tagged heads, and now and then the last tag, with which they delete the payloads of all tags.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_mode_head_every_task_of_either_side_runs_exactly_once() {
    every_task_runs_exactly_once(Tagging::Head, &["-P", "solo"]).await;
}
