//! Foreign programs: run under a time limit, with all that they said in the failure's message.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};

/// Longest time that any tool may take, in seconds; hangs are failures.
const SECONDS_MAX: u64 = 120;

/// A program with its arguments.
pub struct Tool(Command, String);

/// `program`, under a time limit.
pub fn tool(program: &str) -> Tool {
    tool_within(SECONDS_MAX, program)
}

/// `program`, which may take so many seconds.
pub fn tool_within(seconds: u64, program: &str) -> Tool {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &seconds.to_string(), program]).stdin(Stdio::null());
    // Debian's own first: its nbdsh needs Debian's Python, and mke2fs lives where an ordinary user's path does not lead.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/sbin:/usr/bin:/sbin:/bin:{path}"));
    Tool(command, program.to_owned())
}

impl Tool {
    /// One more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.1.push_str(&format!(" {}", arg.as_ref().to_string_lossy()));
        self.0.arg(arg);
        self
    }

    /// More arguments, split at spaces.
    pub fn args(self, args: &str) -> Self {
        args.split_whitespace().fold(self, |tool, arg| tool.arg(arg))
    }

    /// With this variable in its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs it in this folder.
    pub fn within(mut self, folder: &std::path::Path) -> Self {
        self.0.current_dir(folder);
        self
    }

    /// Runs it to its end.
    pub fn output(mut self) -> Output {
        self.0.output().unwrap_or_else(|error| panic!("{}: {error}", self.1))
    }

    /// Runs it; it has to succeed. Returns what it wrote.
    pub fn ok(self) -> String {
        let line = self.1.clone();
        let output = self.output();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}\n{}\n{out}{err}", output.status);
        out.into_owned()
    }

    /// Runs it; it has to fail, and not by the time limit. Returns all that it wrote.
    pub fn fails(self) -> String {
        let line = self.1.clone();
        let output = self.output();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "{line} succeeded:\n{text}");
        assert!(!matches!(output.status.code(), Some(124 | 137) | None), "{line} hung:\n{text}");
        text
    }
}
