//! The screen: a few lines of the terminal, drawn again and again, that stay in its history. Whatever ends the process
//! (the end, Ctrl-C, a panic) leaves the terminal as it was.

use std::env;
use std::io::{self, Stdout, Write as _};
use std::panic;
use std::thread;
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{MoveTo, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::crossterm::{execute, terminal};
use ratatui::{Terminal, TerminalOptions, Viewport};

use super::picture::{Picture, Size};
use super::scene::Scene;

/// The part of the terminal that is ours.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    size: Size,
    colour: bool,
}

impl Screen {
    /// None if the terminal is too small, or cannot do it.
    pub(super) fn open() -> Option<Self> {
        if env::var_os("TERM").is_some_and(|term| term == "dumb") {
            return None;
        }
        let (width, height) = terminal::size().ok()?;
        let size = Size::fitting(width, height)?;
        // Keys do not show while it is drawn, and the terminal can be asked where the cursor is.
        terminal::enable_raw_mode().ok()?;
        let options = TerminalOptions { viewport: Viewport::Inline(size.height()) };
        let Ok(terminal) = Terminal::with_options(CrosstermBackend::new(io::stdout()), options) else {
            let _ = terminal::disable_raw_mode();
            return None;
        };
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let bottom = terminal::size().map_or(0, |(_, height)| height.saturating_sub(1));
            let _ = execute!(io::stdout(), MoveTo(0, bottom));
            restore();
            tell(info);
        }));
        Some(Self { terminal, size, colour: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) })
    }

    /// Draws how things are.
    pub(super) fn draw(&mut self, scene: &Scene) -> io::Result<()> {
        let picture = Picture { scene, size: self.size, colour: self.colour };
        self.terminal.draw(|frame| frame.render_widget(picture, frame.area()))?;
        Ok(())
    }
}

/// Whether Ctrl-C, Escape or q has been pressed since it was asked last.
pub(super) fn is_asked_to_stop() -> io::Result<bool> {
    let mut asked = false;
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()? {
            let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            asked |= control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
        }
    }
    Ok(asked)
}

impl Drop for Screen {
    fn drop(&mut self) {
        if thread::panicking() {
            // The hook has been here, and its message stands below.
            return;
        }
        let bottom = self.terminal.get_frame().area().bottom().saturating_sub(1);
        let _ = execute!(io::stdout(), MoveTo(0, bottom));
        restore();
    }
}

/// Keys and cursor as they were; what is written next begins a new line.
fn restore() {
    let _ = terminal::disable_raw_mode();
    let mut out = io::stdout();
    let _ = execute!(out, Show);
    let _ = out.write_all(b"\r\n");
    let _ = out.flush();
}
