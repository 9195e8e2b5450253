//! The picture: for each queue a lane per user, in which time goes from left to right. What waits stands to the left of the
//! lane, what a worker does or did is a block in it.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::Widget;

use super::scene::{Scene, Service, Side, USERS, WORKERS};
use super::summary;

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// A lane is one row: its upper half is the first worker, its lower half the second.
    Small,
    /// A lane has a row for each worker, and blocks have numbers.
    Large,
}

/// The picture of a scene.
pub(super) struct Picture<'a> {
    pub(super) scene: &'a Scene,
    pub(super) size: Size,
    pub(super) colour: bool,
}

/// One colour for each user.
const COLOURS: [Color; USERS.len()] = [Color::Cyan, Color::Yellow, Color::Magenta];

/// Columns left of a lane: name, number of waiting tasks, waiting tasks.
const LEFT: u16 = 18;

/// Columns at the end of a lane in which it says when its user was done.
const RIGHT: u16 = 10;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

impl Size {
    /// The largest that fits; none if not even the small one does.
    pub(super) fn fitting(width: u16, height: u16) -> Option<Self> {
        // What follows the picture should fit, too.
        match (width, height) {
            (100.., 36..) => Some(Self::Large),
            (72.., 16..) => Some(Self::Small),
            _ => None,
        }
    }

    /// Rows of the picture.
    pub(super) fn height(self) -> u16 {
        let lanes = (self.lane() + self.gap()) * u16::try_from(USERS.len()).unwrap_or(u16::MAX) - self.gap();
        1 + self.gap() + (1 + lanes) + 1 + (1 + lanes) + 1 + self.gap()
    }

    /// Rows of a lane.
    fn lane(self) -> u16 {
        match self {
            Self::Small => 1,
            Self::Large => 2,
        }
    }

    /// Empty rows between lanes, below the headline, and at the end.
    fn gap(self) -> u16 {
        self.lane() - 1
    }
}

impl Widget for Picture<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let mut canvas = Canvas { area, buffer };
        canvas.text(1, 0, &summary::headline(self.scene), DIM);
        let titles = ["fair: a partition for each user", "first come, first served: all in one partition"];
        let mut row = 1 + self.size.gap();
        for (side, title) in Side::BOTH.into_iter().zip(titles) {
            canvas.text(1, row, title, BOLD);
            self.workers(&mut canvas, row, side);
            row += 1;
            for user in 0..USERS.len() {
                self.lane(&mut canvas, row, side, user);
                row += self.size.lane() + self.size.gap();
            }
            row += 1 - self.size.gap();
        }
        self.axis(&mut canvas, row - 1);
    }
}

impl Picture<'_> {
    /// The column of a moment.
    fn column(&self, area: Rect, at: Duration) -> u16 {
        let columns = f64::from(area.width.saturating_sub(LEFT + RIGHT));
        // Whole columns for each task, so that all look the same.
        let tasks = self.scene.expected().div_duration_f64(self.scene.task_time);
        let per_second = (columns / (tasks + 0.2)).floor().max(1.0) / self.scene.task_time.as_secs_f64();
        let per_second = per_second.min(columns / self.scene.elapsed().max(Duration::from_millis(1)).as_secs_f64());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the width")]
        let column = (at.as_secs_f64() * per_second).round().min(columns) as u16;
        LEFT + column
    }

    fn user(&self, user: usize) -> Style {
        match self.colour {
            true => Style::new().fg(COLOURS[user]),
            // Tells it from the lanes above and below.
            false if user % 2 == 1 => DIM,
            false => Style::new(),
        }
    }

    fn block(&self, user: usize) -> Style {
        if self.colour {
            Style::new().fg(Color::Black).bg(COLOURS[user])
        } else {
            Style::new().add_modifier(Modifier::REVERSED)
        }
    }

    /// What the workers do now, at the right edge.
    fn workers(&self, canvas: &mut Canvas<'_>, row: u16, side: Side) {
        let course = self.scene.course(side);
        let mut right = canvas.area.width.saturating_sub(1);
        for worker in (0..WORKERS).rev() {
            let task = course.current(worker);
            let name =
                task.map_or_else(|| " idle ".into(), |task| format!(" {} {:<2} ", USERS[task.user].name, task.number));
            let style = task.map_or(DIM, |task| self.block(task.user));
            right = right.saturating_sub(width(&name));
            canvas.text(right, row, &name, style);
            let label = format!("  {} ", worker + 1);
            right = right.saturating_sub(width(&label));
            canvas.text(right, row, &label, Style::new());
        }
        canvas.text(right.saturating_sub(7), row, "workers", Style::new());
    }

    fn lane(&self, canvas: &mut Canvas<'_>, row: u16, side: Side, user: usize) {
        let course = self.scene.course(side);
        let style = self.user(user);
        canvas.text(1, row, USERS[user].name, style.patch(BOLD));
        let waiting = course.waiting(user);
        if waiting > 0 {
            let squares = "■".repeat(waiting);
            let left = LEFT - 2 - width(&squares);
            canvas.text(left, row, &squares, style);
            canvas.text(left - 3, row, &format!("{waiting:>2}"), Style::new());
        }
        let gap = if user + 1 < USERS.len() { self.size.gap() } else { 0 };
        for row in row..row + self.size.lane() + gap {
            canvas.text(LEFT - 1, row, "│", DIM);
        }
        for service in course.services_of(user) {
            self.service(canvas, row, service);
        }
        if let Some(last) = course.last(user)
            && let Some(done) = last.end
        {
            let row = row + if self.size == Size::Large { line(last) } else { 0 };
            let column = self.column(canvas.area, done) + 1;
            canvas.text(column, row, &format!("✓ {}", summary::seconds(done)), style);
        }
    }

    fn service(&self, canvas: &mut Canvas<'_>, row: u16, service: &Service) {
        let start = self.column(canvas.area, service.start);
        let end = self.column(canvas.area, service.end.unwrap_or_else(|| self.scene.elapsed())).max(start + 1);
        // A gap between this block and the next, if there is room for one.
        let end = if service.end.is_some() && end > start + 2 { end - 1 } else { end };
        match self.size {
            Size::Small => (start..end).for_each(|column| canvas.half(column, row, line(service), self.user(service.user))),
            Size::Large => {
                let name = format!(" {}{}", USERS[service.user].name, service.number);
                let text = format!("{name:<width$.width$}", width = usize::from(end - start));
                canvas.text(start, row + line(service), &text, self.block(service.user));
            }
        }
    }

    /// The time below the lanes.
    fn axis(&self, canvas: &mut Canvas<'_>, row: u16) {
        let span = self.scene.expected().max(self.scene.elapsed()).as_secs_f64();
        // At most five marks, at round times.
        let step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0].into_iter();
        let step = step.clone().find(|step| span / step <= 6.0).unwrap_or(600.0);
        canvas.text(LEFT - 2 - width("waiting"), row, "waiting", DIM);
        let mut at = 0.0;
        while at <= span {
            let mark = if step < 0.1 { format!("╵{at:.2} s") } else { format!("╵{at:.1} s") };
            canvas.text(self.column(canvas.area, Duration::from_secs_f64(at)), row, &mark, DIM);
            at += step;
        }
        let elapsed = summary::seconds(self.scene.elapsed());
        canvas.text(canvas.area.width.saturating_sub(width(&elapsed) + 1), row, &elapsed, BOLD);
    }
}

/// The row of a service in its lane, or the half of it.
fn line(service: &Service) -> u16 {
    u16::try_from(service.worker).unwrap_or_default()
}

/// Columns of a text whose characters take one each.
fn width(text: &str) -> u16 {
    u16::try_from(text.chars().count()).unwrap_or(u16::MAX)
}

/// Where the picture is drawn; what does not fit is left out.
struct Canvas<'a> {
    area: Rect,
    buffer: &'a mut Buffer,
}

impl Canvas<'_> {
    fn text(&mut self, column: u16, row: u16, text: &str, style: Style) {
        for (x, symbol) in (self.area.x.saturating_add(column)..self.area.right()).zip(text.chars()) {
            if let Some(cell) = self.buffer.cell_mut((x, self.area.y + row)) {
                cell.set_char(symbol).set_style(style);
            }
        }
    }

    /// Fills the upper (0) or lower (1) half of a cell; what is in the other half stays.
    fn half(&mut self, column: u16, row: u16, half: u16, style: Style) {
        if let Some(cell) = self.buffer.cell_mut((self.area.x + column, self.area.y + row)) {
            let (own, other) = if half == 0 { ('▀', "▄") } else { ('▄', "▀") };
            let symbol = if matches!(cell.symbol(), "█") || cell.symbol() == other { '█' } else { own };
            cell.set_char(symbol).set_style(style);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::scene::Event;
    use super::*;

    /// Both queues, served in these orders by workers that lose no time.
    fn played(orders: [&str; 2]) -> Scene {
        let (mut scene, start, task_time) = (Scene::new(Duration::from_millis(300), "here"), Instant::now(), 300);
        for (side, order) in Side::BOTH.into_iter().zip(orders) {
            (0..USERS.len()).for_each(|user| scene.take(&Event::Submitted { side, user, at: start }));
            let mut numbers = [0; USERS.len()];
            for (place, name) in order.chars().enumerate() {
                let user = USERS.iter().position(|user| user.name == name.to_string()).unwrap();
                numbers[user] += 1;
                let (number, worker) = (numbers[user], place % WORKERS);
                let at = |round: usize| start + Duration::from_millis(task_time * u64::try_from(round).unwrap());
                let round = place / WORKERS;
                scene.take(&Event::Started { side, user, number, worker, at: at(round) });
                scene.take(&Event::Ended { side, user, number, at: at(round + 1) });
            }
        }
        scene
    }

    fn drawn(scene: &Scene, size: Size, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        Picture { scene, size, colour: true }.render(area, &mut buffer);
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn it_shows_who_was_served_when() {
        let scene = played(["ABCABCACACACAAAAA", "AAAAAAAAAABBCCCCC"]);
        let picture = "
 A submits 10 tasks, then B 2, then C 5 (0.30 s each, 2 workers, here)
 fair: a partition for each user                    workers  1  idle   2  idle
 A               │▀▀▀▀ ▄▄▄▄      ▀▀▀▀ ▀▀▀▀ ▀▀▀▀ ████ ████ ▀▀▀▀  ✓ 2.70 s
 B               │▄▄▄▄      ▀▀▀▀  ✓ 0.90 s
 C               │     ▀▀▀▀ ▄▄▄▄ ▄▄▄▄ ▄▄▄▄ ▄▄▄▄  ✓ 1.80 s

 first come, first served: all in one partition     workers  1  idle   2  idle
 A               │████ ████ ████ ████ ████  ✓ 1.50 s
 B               │                         ████  ✓ 1.80 s
 C               │                              ████ ████ ▀▀▀▀  ✓ 2.70 s
         waiting  ╵0.0 s  ╵0.5 s   ╵1.0 s  ╵1.5 s  ╵2.0 s   ╵2.5 s       2.70 s";
        let drawn = drawn(&scene, Size::Small, 80, Size::Small.height());
        assert_eq!(drawn, &picture[1..], "\n{drawn}");
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let scene = played(["ABCABCACACACAAAAA", "AAAAAAAAAABBCCCCC"]);
        for (width, height) in [(0, 0), (1, 1), (17, 30), (18, 30), (30, 3), (79, 10), (300, 100)] {
            drawn(&scene, Size::Small, width, height);
            drawn(&scene, Size::Large, width, height);
        }
    }
}
