//! What fuzzing does with a command line. `fuzz/` builds this program as its target `words`; here the inputs that are kept in
//! `fuzz/corpus/words` go the same way, without libFuzzer.

use std::ffi::OsStr;
use std::iter::once;
use std::os::unix::ffi::OsStrExt as _;

use clap::Parser;

use crate::Cli;
use crate::server::Server;

/// One word a line. The same lines are parts of a URL with a password, which nobody is shown.
pub(crate) fn words(input: &[u8]) {
    let words: Vec<_> = input.split(|byte| *byte == b'\n').map(OsStr::from_bytes).collect();
    if let Err(error) = Cli::try_parse_from(once(OsStr::new("vtrr")).chain(words.iter().copied())) {
        assert!([0, 2].contains(&error.exit_code()) && !error.render().to_string().is_empty());
    }
    let parts: Option<Vec<_>> = words.iter().map(|word| word.to_str()).collect();
    if let Some(&[scheme, user, before, after, host, rest]) = parts.as_deref() {
        hides(scheme, user, [before, after], host, rest);
    }
}

/// A password, in digits, since what is not escaped may be taken for a port.
const SECRET: &str = "31337";

fn hides(scheme: &str, user: &str, [before, after]: [&str; 2], host: &str, rest: &str) {
    let url = format!("{scheme}://{user}:{before}{SECRET}{after}@{host}{rest}");
    // What is part of a scheme or path is no password. Certificates would be read from any file.
    let is_path = user.contains('/') || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+');
    if is_path || url.matches(SECRET).count() > 1 || url.contains("cert") {
        return;
    }
    let with = With::try_parse_from(["vtrr", &format!("--url={url}")]);
    let shown = with.map(|with| with.server.connect().map(|server| server.map(|(_, address)| address)));
    let shown = format!("{shown:?}");
    assert!(!shown.contains(SECRET), "{url:?}: {shown}");
}

#[derive(Parser)]
struct With {
    #[command(flatten)]
    server: Server,
}

#[test]
#[allow(clippy::print_stdout, reason = "says which one, if one fails")]
fn kept_words() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/words");
    let mut files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        println!("{}", file.display());
        words(&std::fs::read(file).unwrap());
    }
}
