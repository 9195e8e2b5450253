//! As much of the Redis protocol as the fixtures need: where a message ends, and how a command is written.

/// The length of the first complete request or reply in `bytes`, or `None` if more bytes are needed.
/// What is not in the protocol (TLS, say) counts as complete as it is.
pub(crate) fn frame_length(bytes: &[u8]) -> Option<usize> {
    if !b"*$+-:_#,(!=%~>|".contains(bytes.first()?) {
        return Some(bytes.len());
    }
    let mut position = 0;
    let mut parts = 1;
    while parts > 0 {
        let rest = bytes.get(position..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        position += end + 2;
        parts -= 1;
        // Only counts and lengths are numbers from 0; the null of RESP2, -1, has nothing after it.
        let number = || {
            let digits = std::str::from_utf8(&rest[1..end]).unwrap_or_default();
            digits.parse::<usize>().ok()
        };
        match rest[0] {
            b'*' | b'~' | b'>' => parts += number().unwrap_or(0),
            b'%' => parts += 2 * number().unwrap_or(0),
            b'|' => parts += 2 * number().unwrap_or(0) + 1,
            b'$' | b'!' | b'=' => position += number().map_or(0, |length| length + 2),
            _ => {}
        }
    }
    (position <= bytes.len()).then_some(position)
}

/// The bytes of a command.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let parts = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let parts: String = parts.collect();
    format!("*{}\r\n{parts}", words.len()).into_bytes()
}

/// Whether `request` calls a script: EVAL, EVALSHA or one of their read-only forms.
pub(crate) fn is_script_call(request: &[u8]) -> bool {
    let name = request.split(|&byte| byte == b'\n').nth(2).unwrap_or(b"");
    name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(b"EVAL"))
}

#[test]
fn a_frame_ends_where_its_last_part_ends() {
    for frame in [
        "+OK\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "$5\r\na\r\nbc\r\n",
        "*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
        "%1\r\n+a\r\n*1\r\n_\r\n",
        "|1\r\n+a\r\n:1\r\n,1.5\r\n",
    ] {
        for cut in 1..frame.len() {
            assert_eq!(frame_length(&frame.as_bytes()[..cut]), None, "{frame:?}");
        }
        let followed = format!("{frame}+next\r\n");
        assert_eq!(frame_length(followed.as_bytes()), Some(frame.len()));
    }
}

#[test]
fn script_calls_are_told_by_their_first_word() {
    assert!(is_script_call(&command(&["evalsha", "0123", "0"])));
    assert!(is_script_call(&command(&["EVAL", "return 1", "0"])));
    assert!(!is_script_call(&command(&["SET", "EVAL", "EVAL"])));
    assert!(!is_script_call(&command(&["PING"])));
}
