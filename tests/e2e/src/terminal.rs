//! A command on its own terminal, created by `script`: a test sends keys, and a terminal emulator shows the screen.

use std::fs;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::daemon::{binary, wait_for};
use crate::folder::Folder;
use crate::tool::tool;

/// A terminal and its command, killed when dropped.
pub struct Terminal {
    child: Child,
    keys: Option<ChildStdin>,
    /// Path of the terminal.
    path: PathBuf,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Feeds the command's output to the emulator; ends with the output.
    reader: Option<JoinHandle<()>>,
}

fn positive(value: u16) -> NonZeroU16 {
    NonZeroU16::new(value).expect("a positive screen size")
}

/// Quotes `text` for the shell.
fn quote_for_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Terminal {
    /// Runs the binary under test with `args` on a terminal of this size.
    pub fn run(folder: &Folder, args: &[&str], columns: u16, rows: u16) -> Terminal {
        let path_file = folder.join("terminal");
        let arguments: Vec<_> = args.iter().map(|arg| quote_for_shell(arg)).collect();
        let (path_argument, binary_argument) =
            (quote_for_shell(&path_file.to_string_lossy()), quote_for_shell(&binary().to_string_lossy()));
        let line = format!(
            "stty cols {columns} rows {rows}; tty >{path_argument}.new; mv {path_argument}.new {path_argument}; exec \
             {binary_argument} {}",
            arguments.join(" ")
        );
        // The command has its own session, so nothing reaches the terminal of the test run. All output goes to the
        // pipe.
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--flush", "--command"]).arg(line).arg("/dev/null");
        command.env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("script runs");
        let mut output = child.stdout.take().expect("the stream is piped");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(positive(rows), positive(columns), 0)));
        let shown = screen.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("no thread panics with the lock held").process(&bytes[..count]);
            }
        });
        let path = wait_for("the terminal", || fs::read_to_string(&path_file).ok());
        let keys = child.stdin.take();
        Terminal { child, keys, path: PathBuf::from(path.trim()), screen, reader: Some(reader) }
    }

    /// Sends keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.as_mut().expect("the stream is piped").write_all(keys.as_bytes()).expect("the terminal exists");
    }

    /// Resizes the terminal, as a window does.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        self.screen.lock().expect("no thread panics with the lock held").set_size(positive(rows), positive(columns));
        tool("stty").arg("-F").arg(&self.path).args(&format!("cols {columns} rows {rows}")).ok();
    }

    /// Text on the screen.
    pub fn text(&self) -> String {
        self.screen.lock().expect("no thread panics with the lock held").screen().contents()
    }

    /// True while the alternate screen is active.
    pub fn is_alternate_screen(&self) -> bool {
        self.screen.lock().expect("no thread panics with the lock held").screen().alternate_screen()
    }

    /// Waits until the screen's text satisfies `matches`; returns the text.
    pub fn wait_for(&self, event: &str, mut matches: impl FnMut(&str) -> bool) -> String {
        wait_for(event, || Some(self.text()).filter(|text| matches(text)))
    }

    /// Waits for the end of the command and of its output; returns its exit status.
    pub fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let status = wait_for("the command's end", || child.try_wait().expect("the command is a child process"));
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The command gets SIGHUP when its terminal is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the terminal ---\n{}", self.text());
        }
    }
}
