//! demo: three users, two workers, and who is served when; beside it the same tasks first come, first served.
//!
//! Modules: `play` makes it happen, with real queues and workers, and tells `scene`, which knows what has happened; `plain`
//! (lines) or `live` (a screen, which `picture` draws) shows it; `summary` says what was to be seen.

mod erase;
mod live;
mod picture;
mod plain;
mod play;
mod scene;
mod summary;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use vtrr_queue::{Memory, Runner};

use self::live::Screen;
use self::play::Play;
use self::scene::{Event, Scene};
use crate::Failure;
use crate::server::Server;

/// Options of `demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: Server,
    /// How long a task takes, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    task_ms: u64,
    /// Print lines, also to a terminal
    #[arg(long)]
    plain: bool,
}

/// How often the screen is drawn.
const FRAME: Duration = Duration::from_millis(33);

/// How long nothing may happen, beside the time of a task, before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Exit code of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Shows it. Errors: the server cannot be used; stdout cannot be written.
pub(crate) async fn run(args: Args) -> Result<ExitCode, Failure> {
    let task_time = Duration::from_millis(args.task_ms);
    match args.server.connect()? {
        None => perform(Arc::new(Memory::new()), "in memory", task_time, args.plain).await,
        Some((runner, address)) => {
            let done = perform(runner, &format!("on {address}"), task_time, args.plain).await;
            done.map_err(|failure| match failure.downcast::<vtrr_queue::Error>() {
                Ok(error) => format!("{address}: {error}").into(),
                Err(other) => other,
            })
        }
    }
}

/// The whole performance, on any runner.
async fn perform<R>(runner: R, place: &str, task_time: Duration, plain: bool) -> Result<ExitCode, Failure>
where
    R: Runner + Clone + 'static,
{
    let play = Play::prepare(runner, task_time).await?;
    let mut scene = Scene::new(task_time, place);
    let mut view = View::open(plain, &scene)?;
    let (tell, mut hear) = mpsc::unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let work = tokio::spawn(play.perform(tell, stopped));
    let watched = attend(&mut view, &mut scene, &mut hear).await;
    stop.send_replace(true);
    let closed = view.close(&scene);
    // First what went wrong on the stage: what the audience missed follows from that.
    work.await??;
    closed?;
    if !watched? {
        return Ok(INTERRUPTED.into());
    }
    let mut out = io::stdout().lock();
    summary::write(&scene, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Shows what happens until all is done (true), or until somebody has seen enough (false).
async fn attend(view: &mut View, scene: &mut Scene, hear: &mut mpsc::UnboundedReceiver<Event>) -> Result<bool, Failure> {
    let (mut interrupted, mut last) = (std::pin::pin!(interrupted()), Instant::now());
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !scene.is_over() {
        tokio::select! {
            event = hear.recv() => {
                let Some(event) = event else { return Ok(false) };
                last = Instant::now();
                scene.take(&event);
                view.heard(scene, &event)?;
            }
            _ = frames.tick() => {
                if last.elapsed() > scene.task_time + PATIENCE {
                    return Err("the queue does not answer any more".into());
                }
                if view.frame(scene)? {
                    return Ok(false);
                }
            }
            () = &mut interrupted => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns when the process is asked to end.
async fn interrupted() {
    #[cfg(unix)]
    if let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = terminate.recv() => return,
            Ok(()) = tokio::signal::ctrl_c() => return,
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// How it is shown.
enum View {
    Live(Screen),
    Plain,
}

impl View {
    /// A screen if stdout is a terminal that has room for one, else lines.
    fn open(plain: bool, scene: &Scene) -> io::Result<Self> {
        if !plain
            && io::stdout().is_terminal()
            && let Some(screen) = Screen::open()
        {
            return Ok(Self::Live(screen));
        }
        plain::open(scene)?;
        Ok(Self::Plain)
    }

    fn heard(&mut self, scene: &Scene, event: &Event) -> io::Result<()> {
        match self {
            Self::Live(_) => Ok(()),
            Self::Plain => plain::write(scene, event),
        }
    }

    /// Shows how things are; answers whether the user has seen enough.
    fn frame(&mut self, scene: &Scene) -> io::Result<bool> {
        match self {
            Self::Live(screen) => {
                screen.draw(scene)?;
                live::is_asked_to_stop()
            }
            Self::Plain => Ok(false),
        }
    }

    fn close(self, scene: &Scene) -> io::Result<()> {
        match self {
            Self::Live(mut screen) => screen.draw(scene),
            Self::Plain => plain::close(scene),
        }
    }
}
