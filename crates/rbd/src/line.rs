//! Lines of the control channel.

use std::io::{self, BufRead, Read};

/// Longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 4096;

/// The next line without its end; `None` at the end of the channel. A longer line is split.
pub fn read_line(channel: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let len = channel.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    Ok((len > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_and_are_bounded() {
        let mut channel = io::Cursor::new([b"mark\n".as_slice(), &[b'x'; LINE_BYTES_MAX + 1]].concat());
        assert_eq!(read_line(&mut channel).expect("memory").as_deref(), Some("mark"));
        let lengths: Vec<Option<usize>> =
            (0..3).map(|_| read_line(&mut channel).expect("memory").map(|line| line.len())).collect();
        assert_eq!(lengths, [Some(LINE_BYTES_MAX), Some(1), None]);
    }
}
