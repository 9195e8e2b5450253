//! A TCP proxy in front of a server that loses what it is told to lose.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use crate::resp;

/// Passes connections on to a server on this machine. Dropping it closes them all.
pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
}

struct State {
    upstream: u16,
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Default)]
struct Now {
    fault: Option<Fault>,
    blackhole: bool,
    closed: bool,
    links: Vec<Arc<Link>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    DropReply,
    CutRequest,
}

impl Proxy {
    pub(crate) fn start(upstream_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(State { upstream: upstream_port, now: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.now().closed {
                    return;
                }
                // While the server is down, the client sees its connection closed.
                let _ = accepting.connect(client);
            }
        });
        Self { port, state }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Throws away the server's next reply to a script call (EVAL, EVALSHA) and closes that connection: the
    /// script has run, and its caller does not know. A NOSCRIPT error passes, since nothing has run.
    pub(crate) fn drop_next_reply(&self) {
        self.state.now().fault = Some(Fault::DropReply);
    }

    /// Closes the connection of the next script call instead of passing the call on.
    pub(crate) fn cut_before_next_request(&self) {
        self.state.now().fault = Some(Fault::CutRequest);
    }

    /// Whether the fault last asked for has yet to happen.
    pub(crate) fn is_armed(&self) -> bool {
        self.state.now().fault.is_some()
    }

    /// While on, nothing passes and nothing closes; afterwards all of it arrives late, as after a network
    /// split. A request held so may run although its client has long gone.
    pub(crate) fn blackhole(&self, on: bool) {
        self.state.now().blackhole = on;
        self.state.changed.notify_all();
    }

    /// Closes all connections; what a blackhole holds is lost. New ones are accepted.
    pub(crate) fn kill_all(&self) {
        for link in std::mem::take(&mut self.state.now().links) {
            link.close();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.now().closed = true;
        self.state.changed.notify_all();
        self.kill_all();
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl State {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().expect("no thread panicked with the lock")
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.upstream))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let link = Arc::new(Link { client, server, unanswered: Mutex::default() });
        self.now().links.push(Arc::clone(&link));
        let (state, requests) = (Arc::clone(self), Arc::clone(&link));
        thread::spawn(move || {
            let _ = pump(&requests.client, &requests.server, |request| state.passes_request(&requests, request));
            requests.close();
        });
        let state = Arc::clone(self);
        thread::spawn(move || {
            let _ = pump(&link.server, &link.client, |reply| state.passes_reply(&link, reply));
            link.close();
        });
        Ok(())
    }

    fn passes_request(&self, link: &Link, request: &[u8]) -> bool {
        let is_script = resp::is_script_call(request);
        if is_script && self.strikes(Fault::CutRequest) {
            return false;
        }
        self.wait_out_blackhole();
        link.unanswered.lock().unwrap().push_back(is_script);
        true
    }

    fn passes_reply(&self, link: &Link, reply: &[u8]) -> bool {
        // A push of RESP3 answers no request.
        if !reply.starts_with(b">") {
            let is_script = link.unanswered.lock().unwrap().pop_front();
            let has_run = is_script == Some(true) && !reply.starts_with(b"-NOSCRIPT");
            if has_run && self.strikes(Fault::DropReply) {
                return false;
            }
        }
        self.wait_out_blackhole();
        true
    }

    /// Whether this fault is due; if so, it is done with.
    fn strikes(&self, fault: Fault) -> bool {
        let mut now = self.now();
        let strikes = now.fault == Some(fault);
        if strikes {
            now.fault = None;
        }
        strikes
    }

    fn wait_out_blackhole(&self) {
        let held = |now: &mut Now| now.blackhole && !now.closed;
        let waited = self.changed.wait_while(self.now(), held);
        drop(waited.expect("no thread panicked with the lock"));
    }
}

/// A client's connection and the one to the server that it is passed on to.
struct Link {
    client: TcpStream,
    server: TcpStream,
    /// For each request that has no reply yet, in order, whether it calls a script.
    unanswered: Mutex<VecDeque<bool>>,
}

impl Link {
    fn close(&self) {
        // An error says that it is closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

/// Copies request after request, or reply after reply, until one does not pass or a side closes.
fn pump(mut from: &TcpStream, mut to: &TcpStream, mut passes: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 65_536];
    loop {
        let length = from.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&chunk[..length]);
        let mut done = 0;
        while let Some(length) = resp::frame_length(&bytes[done..]) {
            let frame = &bytes[done..done + length];
            if !passes(frame) {
                return Ok(());
            }
            to.write_all(frame)?;
            done += length;
        }
        bytes.drain(..done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Kind, Server};
    use std::time::Duration;

    const INCREMENT: [&str; 4] = ["EVAL", "return redis.call('INCR', KEYS[1])", "1", "n"];

    /// Sends a command and returns the first bytes that come back; none if the connection closes.
    fn ask(mut socket: &TcpStream, words: &[&str]) -> io::Result<String> {
        socket.write_all(&resp::command(words))?;
        let mut chunk = [0; 512];
        let length = match socket.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            other => other?,
        };
        Ok(String::from_utf8_lossy(&chunk[..length]).into_owned())
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(("127.0.0.1", proxy.port())).unwrap()
    }

    #[test]
    fn a_dropped_reply_is_of_a_script_that_ran() {
        let server = Server::start(Kind::Redis);
        let proxy = Proxy::start(server.port());
        let client = connect(&proxy);
        proxy.drop_next_reply();
        assert_eq!(ask(&client, &["PING"]).unwrap(), "+PONG\r\n");
        let unknown = ask(&client, &["EVALSHA", &"0".repeat(40), "0"]).unwrap();
        assert!(unknown.starts_with("-NOSCRIPT"), "{unknown}");
        assert!(proxy.is_armed());
        assert_eq!(ask(&client, &INCREMENT).unwrap(), "");
        assert!(!proxy.is_armed());
        assert_eq!(ask(&connect(&proxy), &INCREMENT).unwrap(), ":2\r\n");
    }

    #[test]
    fn a_cut_request_does_not_run() {
        let server = Server::start(Kind::Redis);
        let proxy = Proxy::start(server.port());
        let client = connect(&proxy);
        proxy.cut_before_next_request();
        assert_eq!(ask(&client, &["PING"]).unwrap(), "+PONG\r\n");
        assert_eq!(ask(&client, &INCREMENT).unwrap(), "");
        assert_eq!(ask(&connect(&proxy), &INCREMENT).unwrap(), ":1\r\n");
    }

    #[test]
    fn a_blackhole_delays_and_closing_loses() {
        let server = Server::start(Kind::Redis);
        let proxy = Proxy::start(server.port());
        let clients = [connect(&proxy), connect(&proxy)];
        for client in &clients {
            assert_eq!(ask(client, &["PING"]).unwrap(), "+PONG\r\n");
            let timeout = Some(Duration::from_millis(20));
            client.set_read_timeout(timeout).unwrap();
        }
        proxy.blackhole(true);
        let error = ask(&clients[0], &INCREMENT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        proxy.kill_all();
        proxy.blackhole(false);
        let client = connect(&proxy);
        assert_eq!(ask(&client, &INCREMENT).unwrap(), ":1\r\n");
        assert_eq!(ask(&clients[1], &["PING"]).unwrap_or_default(), "");

        proxy.blackhole(true);
        client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        ask(&client, &INCREMENT).unwrap_err();
        proxy.blackhole(false);
        client.set_read_timeout(None).unwrap();
        let mut late = [0; 4];
        (&client).read_exact(&mut late).unwrap();
        assert_eq!(&late, b":2\r\n");
    }

    #[test]
    fn a_url_leads_through_the_proxy() {
        let proxy = Proxy::start(Server::shared(Kind::Redis).port());
        assert_eq!(proxy.url(), format!("redis://127.0.0.1:{}/", proxy.port()));
        assert_eq!(ask(&connect(&proxy), &["PING"]).unwrap(), "+PONG\r\n");
    }
}
