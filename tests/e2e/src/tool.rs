//! External programs, run with a time limit and with their output in failure messages.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};

/// Time limit of a tool in seconds; a hang is a failure.
const SECONDS_MAX: u64 = 120;

/// A program with its arguments, and its command line as text.
pub struct Tool(Command, String);

/// Runs `program` with the default time limit.
pub fn tool(program: &str) -> Tool {
    tool_within(SECONDS_MAX, program)
}

/// Runs `program` with a time limit in seconds.
pub fn tool_within(seconds: u64, program: &str) -> Tool {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &seconds.to_string(), program]).stdin(Stdio::null());
    // Debian's paths come first: nbdsh needs Debian's Python, and mke2fs is not on an ordinary user's path.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/sbin:/usr/bin:/sbin:/bin:{path}"));
    Tool(command, program.to_owned())
}

impl Tool {
    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.1.push_str(&format!(" {}", arg.as_ref().to_string_lossy()));
        self.0.arg(arg);
        self
    }

    /// Adds arguments, split at spaces.
    pub fn args(self, args: &str) -> Self {
        args.split_whitespace().fold(self, |tool, arg| tool.arg(arg))
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Sets the working folder.
    pub fn within(mut self, folder: &std::path::Path) -> Self {
        self.0.current_dir(folder);
        self
    }

    /// Runs the program to its end.
    pub fn output(mut self) -> Output {
        self.0.output().unwrap_or_else(|error| panic!("{}: {error}", self.1))
    }

    /// Runs the program, which must succeed; returns its standard output.
    pub fn ok(self) -> String {
        let line = self.1.clone();
        let output = self.output();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}\n{}\n{out}{err}", output.status);
        out.into_owned()
    }

    /// Runs the program, which must fail, but not by the time limit; returns its output.
    pub fn fails(self) -> String {
        let line = self.1.clone();
        let output = self.output();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "{line} succeeded:\n{text}");
        assert!(!matches!(output.status.code(), Some(124 | 137) | None), "{line} hung:\n{text}");
        text
    }
}
